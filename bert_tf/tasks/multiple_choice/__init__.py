"""Multiple choice, as in SWAG."""
