"""`mesp-gui` says that the window does not exist yet."""

from app.main import main


def test_it_says_so_and_fails(capsys):
    assert main() == 1
    assert "mesp compare" in capsys.readouterr().err
