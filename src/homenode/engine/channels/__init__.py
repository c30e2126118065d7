"""How workers reach each other and their engine: shared memory on one host, TCP between hosts."""
