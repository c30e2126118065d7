"""Who asks: named API keys, what each may use, and what each has used."""
