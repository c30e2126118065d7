"""The made-up text that the built-in model learns: every sentence is written here, and a seed decides which ones are drawn."""
