"""KV blocks on disk: kept over restarts, shared by all engines of a host that have the same model."""
