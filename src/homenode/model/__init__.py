"""Model files, tokenizers, architectures and weights: everything between a path and a forward function."""
