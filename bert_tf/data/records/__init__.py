"""Record files: format, order, checks, manifest, report."""
