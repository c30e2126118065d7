"""Channels: how two engines reach each other, and how the bytes of KV memory get from one to the other."""
