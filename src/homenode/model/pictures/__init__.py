"""Models that see: how a picture is read and cut, the tower that makes rows of it, and what the prompt says in its
place. One file for each family, on blocks that they share.
"""
