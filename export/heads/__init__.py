"""Strings in, predictions out, in graph: one module for each kind of head."""
