"""Predictions, masked tokens and features from trained models."""
