"""The order in which requests run. Pure: events in, steps and outputs out."""
