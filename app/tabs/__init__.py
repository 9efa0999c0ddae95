"""The tables and texts below the plots."""
