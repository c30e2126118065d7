"""Output of commands: reports, tables, progress and errors."""
