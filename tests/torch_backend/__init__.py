"""The torch backend on the CPU: what only it has, and what it does differently on accelerators as far as that can be
seen here.
"""
