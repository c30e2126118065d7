"""Cores and memory nodes that a policy may hand out, in their order, and the share of each device. Pure."""
