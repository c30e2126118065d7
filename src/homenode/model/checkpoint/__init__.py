"""Hugging Face folders and GGUF files as models, opened and checked by `index.open_checkpoint`; what is read of them is
a `model.spec.Checkpoint`.
"""
