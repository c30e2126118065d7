"""Processes of their own for what a model's files can make run: chat templates, and the tokenizer library while it
reads a file.

Whoever wrote a model's files decides what a template computes and what the library is fed. Neither has limits of time
or memory of its own, and the library can end its process. So both run in a child process under limits of the kernel,
which is ended when its time is over. `limits` is what the child does to itself, `process` is the parent's side,
`frames` is what the two speak.
"""
