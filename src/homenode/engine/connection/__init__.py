"""The connection by which a front starts an engine process and talks to it."""
