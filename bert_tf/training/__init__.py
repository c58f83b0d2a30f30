"""The training engine: step, loop, optimizer, checkpoints."""
