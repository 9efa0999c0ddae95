"""Where files lie, and how they are written whole or not at all. Knows no model. Loads no MLX."""
