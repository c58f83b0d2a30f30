"""Devices, strategies, workers and their failures."""
