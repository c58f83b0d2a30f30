"""Trained models put to use."""
