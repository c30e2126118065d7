"""Requests to tokens: settings, scheduler, worker, the loop that joins them, and the clients that reach it."""
