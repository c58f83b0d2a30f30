"""Record files: serializer, counts, checks and manifest."""
