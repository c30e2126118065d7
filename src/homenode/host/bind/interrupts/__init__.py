"""Interrupts of a target's devices: which those are, and irqbalance, which has to leave them alone."""
