"""The training engine: step, trainer, losses, optimizer, checkpoints."""
