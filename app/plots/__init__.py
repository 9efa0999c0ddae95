"""The three live plots. What pyqtgraph is told before its import, and as a whole, is told here."""

import os

# pyqtgraph takes whichever Qt binding it finds first; with two of them in one process nothing works.
os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"

import pyqtgraph

# Lines are drawn as separate segments: as one path, a noisy curve wider than a pixel takes 100 ms and more a frame.
# Curves ask for antialiasing themselves where they can afford it.
pyqtgraph.setConfigOptions(segmentedLineMode="on", antialias=False, useOpenGL=False, leftButtonPan=True)
