"""Arithmetic about KV pages."""
