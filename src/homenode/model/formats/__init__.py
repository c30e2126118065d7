"""Model files as bytes and values: safetensors, GGUF, quantised matrices, and the typed reading of what they say. They
know no architecture.

Nothing is imported here: a front reads the vocabulary of a model, for which it needs a few of these modules.
"""
