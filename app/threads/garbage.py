"""Cyclic garbage is collected on the main thread only.

Python collects on whichever thread happens to allocate. A widget that lies in a cycle would then be destroyed by a
background thread, which Qt does not allow: it may crash, or hang at some later time.
"""

import gc

from PySide6.QtCore import QObject, QTimer

EVERY_MS = 250


class MainThreadGarbage(QObject):
    """Takes the place of Python's automatic collection for as long as it lives. Made, and used, on the main thread."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        gc.disable()
        gc.collect()
        gc.freeze()  # what lives now, modules above all, lives on: looking through it again and again would stall the window
        timer = QTimer(self, interval=EVERY_MS)
        timer.timeout.connect(self.collect_if_due)
        timer.start()

    def collect_if_due(self) -> None:
        """Collect the oldest generation that is due by Python's own thresholds."""
        for generation, (count, threshold) in reversed(
            list(enumerate(zip(gc.get_count(), gc.get_threshold(), strict=True)))
        ):
            if count > threshold:
                gc.collect(generation)
                return

    def close(self) -> None:
        """Give the work back to Python."""
        gc.unfreeze()
        gc.enable()
        self.deleteLater()
