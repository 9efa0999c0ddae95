"""What the machine has to say, at the top of the window."""
