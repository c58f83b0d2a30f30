"""The flags of every script, as dataclasses, and `--help`."""
