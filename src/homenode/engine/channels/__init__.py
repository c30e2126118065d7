"""Channels between workers and their engine: shared memory on one host, TCP between hosts."""
