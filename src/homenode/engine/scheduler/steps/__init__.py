"""Steps: what one may hold and take, what steps cost, and those in flight. Pure."""
