"""The families of models that see, a file each."""
