"""Which arrays of the engine are alive at which moment, in bytes. Loads no MLX."""
