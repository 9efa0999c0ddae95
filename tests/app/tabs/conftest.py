"""Tabs as the window shows them."""

import pytest


@pytest.fixture
def shown(qtbot):
    """shown(tab) -> the tab, on the screen in the usual size of the tab area."""

    def show(tab):
        qtbot.addWidget(tab)
        tab.resize(950, 230)
        tab.show()
        return tab

    return show
