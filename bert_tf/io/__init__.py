"""Files, tables of text and progress bars."""
