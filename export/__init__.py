"""Writes trained models in the forms that servers and phones load."""
