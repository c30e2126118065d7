"""Moves computed KV blocks between engines: sessions that decide (pure), carriers that move bytes, and an agent thread
that joins the two."""
