"""One file for each architecture, which says all that is its own: `registry` finds them. Pieces that they share are in
`common`.
"""
