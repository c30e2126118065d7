"""Connections between processes, of this host and of others: frames, greetings, deadlines, mailboxes, descriptors, and
TLS wherever bytes leave the host."""
