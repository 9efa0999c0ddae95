"""What a model is and where it lies: its config.json, the headers of its files, the hub. Loads no MLX."""
