"""The machine: what this process may use of it."""
