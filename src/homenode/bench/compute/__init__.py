"""Matrix products, attention and whole models against the ceilings of the machine."""
