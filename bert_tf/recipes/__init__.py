"""Flag files and model shapes of published recipes."""
