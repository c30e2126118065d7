"""Settings of a KV transfer, and whether they go together: settings, checks, what is published."""
