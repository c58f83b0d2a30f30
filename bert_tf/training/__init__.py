"""Losses, optimizers and the training loop."""
