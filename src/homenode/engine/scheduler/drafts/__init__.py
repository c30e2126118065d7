"""Drafted tokens: who drafts, how many, and the room that a step has for them. Pure."""
