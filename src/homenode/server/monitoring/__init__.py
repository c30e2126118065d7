"""Figures that /metrics shows, of one front process or of several."""
