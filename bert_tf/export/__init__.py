"""SavedModel and TFLite exporters."""
