"""The device that computes: whether it is a GPU, when it is given work, what it has made of one kernel, what that costs."""
