"""Where files lie, and how they are written whole or not at all, and to the disk. Knows no model. Loads no MLX."""
