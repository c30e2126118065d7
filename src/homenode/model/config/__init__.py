"""What architectures read their figures with: config.json of Hugging Face folders, key-value pairs of GGUF files, and
the names known in both.
"""
