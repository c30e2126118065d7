"""Layers on stages: which there are, what they cost, and how many fit. Pure."""
