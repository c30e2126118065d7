"""The Anthropic Messages API, as the programs of that API's clients and agents call it."""
