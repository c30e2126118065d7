"""The ground of the parsers of all formats: the text as it comes, the deltas as they go, thoughts, and values in JSON
or like it.
"""
