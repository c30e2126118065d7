"""Findings about a machine, a plan and the living system that are in the way of speed, each with a remedy."""
