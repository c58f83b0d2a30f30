"""The Python API for notebooks; `import bert_tf` has the same names."""
