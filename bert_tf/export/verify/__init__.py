"""Checks of an export against its model."""
