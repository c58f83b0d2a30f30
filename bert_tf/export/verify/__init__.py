"""Checks of an export before it appears."""
