"""The demo: from text on this machine to a served classifier."""
