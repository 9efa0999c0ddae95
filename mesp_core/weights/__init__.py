"""A checkpoint's tensors as MLX arrays: read, streamed or mapped, and multiplied by a kernel that was checked."""
