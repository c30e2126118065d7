"""Structured output: what the text of an answer has to be, as a grammar of llguidance.

`spec` has the kinds of wishes, `compile` makes a grammar of one for a `vocabulary`, and refuses by name and place what
cannot be kept. Nothing here knows HTTP or the engine; the workers read the text of the grammar again
(`engine/worker/grammar_masks.py`). llguidance is imported when the first grammar comes.
"""
