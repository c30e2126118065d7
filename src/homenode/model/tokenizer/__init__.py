"""Text to tokens and back: vocabularies, streams, chat templates, stop strings."""

from homenode.model.tokenizer.loader import load_tokenizer
from homenode.model.tokenizer.model_tokenizer import load_model_tokenizer
from homenode.model.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_model_tokenizer", "load_tokenizer"]
