"""The native rule under the name that rules_python gives it."""

py_test = native.py_test
