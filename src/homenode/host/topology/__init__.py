"""Facts about the machine, read only."""
