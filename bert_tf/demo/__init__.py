"""The demo: builds and serves a classifier from text on this machine."""
