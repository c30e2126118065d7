"""The models of a server: what answers of each are made with, and where a request finds its own."""
