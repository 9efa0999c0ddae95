"""What may be asked for. Loads no MLX."""
