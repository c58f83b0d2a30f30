"""One module for each command: flags in, one call out."""
