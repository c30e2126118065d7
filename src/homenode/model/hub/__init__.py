"""Facts that are known of a Hub repository before its weights are fetched, and what the cache of this machine holds."""
