"""The clients that ask: named API keys, what each may use, and what each has used."""
