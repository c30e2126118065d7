"""`homenode bench`: one measurement a module."""
