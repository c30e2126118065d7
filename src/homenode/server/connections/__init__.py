"""Connections of clients: which are taken, what on them is HTTP, and how long a client may take to send and to read."""
