"""The way from a checkpoint to parameters in a backend: match names, plan the layout, read."""
