"""Deployments on paper: the real scheduler, router and placement before a cost model in place of kernels. Virtual time
only."""
