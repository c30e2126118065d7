"""What an engine takes memory for, and how much of which NUMA node it may take."""
