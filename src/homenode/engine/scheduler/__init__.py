"""Which request runs when. Pure: events in, steps and outputs out."""
