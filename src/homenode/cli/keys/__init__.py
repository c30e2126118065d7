"""Command `homenode keys`."""
