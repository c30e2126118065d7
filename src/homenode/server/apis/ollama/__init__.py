"""The Ollama API, so that tools made for Ollama can be pointed here."""
