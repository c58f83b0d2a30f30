"""What the library says, with which an export is compared."""
