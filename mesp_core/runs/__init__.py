"""The parent's side of a run: preparing it, its workers and their turns, what they say, its results. Loads no MLX."""
