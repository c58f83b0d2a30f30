"""Serves SavedModels over the REST and gRPC interfaces of TensorFlow Serving.

The server works with any SavedModel, not only with BERT.
"""
