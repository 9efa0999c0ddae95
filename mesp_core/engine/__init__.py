"""What the methods share: the passes through a block, where block inputs stand, the loss, the gradients."""
