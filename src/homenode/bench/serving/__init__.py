"""A server as its clients see it: tokens, latencies, and how long it takes to start."""
