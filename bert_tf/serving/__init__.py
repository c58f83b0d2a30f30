"""Serves SavedModels over the REST and gRPC interfaces of TensorFlow Serving.

Nothing here knows what the models compute.
"""
