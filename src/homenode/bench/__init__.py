"""Measurements of this machine and of models on it."""
