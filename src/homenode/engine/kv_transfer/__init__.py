"""KV that goes to other engines or comes from them: what an engine needs for that, and the agent that does it."""
