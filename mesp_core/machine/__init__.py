"""The machine's memory, a process's footprint, heat, battery and BLAS. Loads no MLX."""
