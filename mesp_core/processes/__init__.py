"""Starting a child, asking it one thing, and hearing signals. Loads no MLX."""
