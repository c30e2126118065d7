"""`homenode cache`: KV blocks that are kept on disk."""
