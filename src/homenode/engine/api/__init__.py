"""Engines for Python programs: prompts in, completions out, with the engine in the same process."""
