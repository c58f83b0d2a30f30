"""Every script's flags."""
