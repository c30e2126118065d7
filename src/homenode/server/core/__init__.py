"""The core under the HTTP APIs: a request of any of them becomes sequences of the engine, whose outputs become text."""
