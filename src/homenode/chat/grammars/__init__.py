"""Grammars that bind decoding to messages in a model's own format: calls of offered tools whose arguments fit their
schemas, thoughts that end within a budget, content that fits a grammar.

`message.call_grammar` is the way in. It is pure: the grammar is a text in the Lark notation of llguidance.
"""
