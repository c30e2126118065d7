"""Connections between engines: made, greeted, read, written, ended."""
