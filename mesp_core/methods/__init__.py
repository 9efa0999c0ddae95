"""What the training methods are, and what each may be asked for. Loads no MLX."""
