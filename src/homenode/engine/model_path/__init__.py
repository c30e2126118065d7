"""Where the model of an engine is, and which is fetched where there is none yet."""
