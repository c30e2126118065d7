"""Abilities of the machine, measured: ceilings, NUMA nodes, and runs repeated until it stays as it was."""
