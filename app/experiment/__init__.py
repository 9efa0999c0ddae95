"""The left side of the window: what to train, on what, and how."""
