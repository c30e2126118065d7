"""Experts of a mixture-of-experts model: how often each is used, and how several engines keep them once."""
