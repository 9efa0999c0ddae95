"""What is learnt: how it begins, how it is written so that mlx-lm loads it, and how it is taken elsewhere."""
