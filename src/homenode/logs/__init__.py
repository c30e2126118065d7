"""Log lines of the long-running processes: written without ever making who logs wait, and told once where they
repeat."""
