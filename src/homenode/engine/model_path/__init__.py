"""The place of an engine's model, and the one that is fetched where there is none yet."""
