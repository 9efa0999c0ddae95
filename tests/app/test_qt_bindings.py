"""What the app relies on in the Qt bindings, where versions have got it wrong."""

import sys

import pytest
from PySide6.QtCore import QObject, Signal


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="True is immortal there")
def test_emitting_a_signal_costs_no_reference_to_true():
    """Seen in PySide6 6.12.0: after some hundred signals Python 3.11 aborts."""

    class Sender(QObject):
        sent = Signal(int)

    sender = Sender()
    before = sys.getrefcount(True)
    for number in range(100):
        sender.sent.emit(number)
    assert abs(sys.getrefcount(True) - before) < 50
