"""What the machine can do, measured: ceilings, NUMA nodes, and runs repeated until it stays as it was."""
