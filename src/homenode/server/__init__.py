"""The OpenAI API over HTTP. Sees the engine's client and its message types, nothing deeper."""
