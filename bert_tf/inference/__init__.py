"""Predictions, masked words and features from trained models."""
