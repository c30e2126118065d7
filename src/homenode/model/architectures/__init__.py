"""Forward functions written on Ops, one small file for each architecture, and the table of them."""
