"""A step made into arrays, run, and sampled from."""
