"""Costs that an engine adds to computing: its step, and several ranks."""
