"""Exact, low-memory LoRA fine-tuning: everything but the window. Importing this package loads neither MLX nor Qt."""

__version__ = "0.1.0"
