"""Drafted tokens: settings, sources that need no model, and how many are worth their rows. Pure."""
