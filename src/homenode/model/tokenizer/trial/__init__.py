"""A tokenizer is loaded and used in a process that may die, before it is loaded in the program itself."""
