"""What parsers of all formats stand on: the text as it comes, the deltas as they go, thoughts, and values in JSON or
like it.
"""
