"""The Ops protocol and the backends that fulfil it."""
