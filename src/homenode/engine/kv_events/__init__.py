"""Events about KV blocks for routers: which prompt beginnings this engine holds, told over ZeroMQ as vLLM does."""
