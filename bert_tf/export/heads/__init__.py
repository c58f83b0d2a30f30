"""In-graph pre- and postprocessing for each kind of model."""
