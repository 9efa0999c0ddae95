"""Starting a child, the talk with it, and hearing signals. Loads no MLX."""
