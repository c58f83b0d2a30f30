"""The native rule under the name that rules_python gives it."""

py_library = native.py_library
