"""A model's text, understood as a message: content, thoughts and tool calls apart.

`parser` is the way in: it is fed text in pieces of any size and gives deltas (`reading.parts`). `choice` decides from a
chat template how a model writes its calls and thoughts; `formats` has one file for each form of calls and is scanned;
`reading` has what they stand on. `call_grammar` writes the grammar that binds decoding to such a message, from
`grammars` and what each format says of its calls. Nothing here does I/O or knows a tokenizer.
"""
