"""Scripts; each turns flags into a configuration and makes one call."""
