"""Vocabularies as GGUF files store them, each kind turned into a model of the `tokenizers` library."""
