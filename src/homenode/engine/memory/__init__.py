"""Memory of an engine: what it is for, and how much of which NUMA node may be taken."""
