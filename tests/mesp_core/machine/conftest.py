import pytest
from watched_child import Child


@pytest.fixture
def child():
    child = Child()
    child.do("pass")
    yield child
    child.end()
