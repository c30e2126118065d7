"""The HTTP APIs that clients speak, one folder each, on top of `homenode.server.core`. None imports another."""
