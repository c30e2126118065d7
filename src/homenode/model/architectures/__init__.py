"""One module for each architecture, written on `Ops` only. What several share is in modules by idea: lines of parameter
`tables`, the rows of a `stage`, `attention`, what follows it (`mlp`), and `conversions` of stored tensors.
"""
