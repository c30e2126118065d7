"""Accelerators in the plan of an engine: which device each worker has, and which chip of the host that is."""
