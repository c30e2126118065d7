"""Several front processes before the same engines: who asked, who is told, and what fronts know of each other's requests."""
