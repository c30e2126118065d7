"""Accelerators as their vendors' tools and sysfs tell of them; one vendor a file."""
