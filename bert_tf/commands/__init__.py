"""One module per script: parses flags, then makes one call."""
