"""Model files: Hugging Face folders and GGUF, opened and checked by `index.open_checkpoint`; what is read of them is a `spec.Checkpoint`.

Nothing is imported here: a front reads the vocabulary of a model, for which it needs a few of these modules.
"""
