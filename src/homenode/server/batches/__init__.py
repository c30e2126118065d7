"""Batch files: requests by the thousand that nobody waits for, kept in a folder over restarts."""
