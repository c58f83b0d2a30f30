"""The native rule under the name that rules_python gives it."""

py_binary = native.py_binary
