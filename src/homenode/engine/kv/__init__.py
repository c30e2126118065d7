"""KV memory as numbers: geometry, blocks and their owners, prefixes and their hashes. Pure; no byte of KV is touched
here.
"""
