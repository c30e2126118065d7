"""Servers of several models, where those that a request uses are loaded and stay so."""
