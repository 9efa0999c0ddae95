"""Benchmarks that print, from measurements alone, the tables the project is held against. The parent side loads no MLX."""
