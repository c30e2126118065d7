"""Measurements against other engines: `python -m benchmarks.compare`, `python -m benchmarks.serve`,
`python -m benchmarks.table`.

Not part of the installed package. Other engines are run as programs of their own, so nothing of theirs is needed here
to read or test this.
"""
