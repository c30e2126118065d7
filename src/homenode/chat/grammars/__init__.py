"""Grammars that bind decoding to messages in a model's own format: calls of offered tools whose arguments fit their
schemas, thoughts that end within a budget, content that fits a grammar.

`chat.call_grammar` puts a message together of them. All is pure: a grammar is a text in the Lark notation of
llguidance.
"""
