"""The cases in which a setting of an engine is looked at, and what is said of one that is not. Pure."""
