"""The readers by which architectures get their figures: config.json of Hugging Face folders, key-value pairs of GGUF
files, and the names known in both.
"""
