"""Several models on one host: the memory that each takes, its nodes, its cores, and the assignments of its engines."""
