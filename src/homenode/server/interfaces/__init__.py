"""The interfaces that the server is written on: the engine's client and the tokenizer."""
