"""Work beside the main thread. Touches no widget."""
