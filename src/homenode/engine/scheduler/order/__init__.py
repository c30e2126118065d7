"""The order of requests: whose turn it is, and who gives way. Pure."""
