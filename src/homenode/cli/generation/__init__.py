"""`homenode generate` and `homenode chat`: text in the terminal."""
