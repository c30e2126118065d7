"""Workers: what computes an engine's steps when that is more than one thread's team in the engine's own process."""
