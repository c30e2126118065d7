"""Flags that commands share, made of the settings, and how they are parsed."""
