"""Grammars of llama.cpp (GBNF) as Lark, by llguidance's own converter."""

from __future__ import annotations

import re

from homenode.grammars.field_path import FieldPath

_MOST_RULES = 600
_RULE = re.compile(r"^\s*([\w-]+)\s*::=", re.MULTILINE)
_NAMED = re.compile(r"Rule '([^']*)'")


def gbnf_lark(text: str, place: FieldPath) -> str:
    """The grammar in Lark, whose rule `start` is the rule `root`. UserError that names the rule at fault."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    rules = _RULE.findall(text)
    if len(rules) > _MOST_RULES:
        raise place.refusal(f"the grammar has {len(rules)} rules; at most {_MOST_RULES} can be converted")
    if not rules:
        raise place.refusal('this is no grammar: there is no rule, such as root ::= "yes" | "no"')
    try:
        return str(gbnf_to_lark(text))
    except GbnfToLarkError as error:
        problem, where = str(error), _rule_at(text, error.pos.pos)
    except RecursionError:
        problem, where = "it is nested too deeply", rules[0]
    except Exception as error:  # whatever the converter makes of a text of a client
        named = _NAMED.search(str(error))
        problem, where = str(error), _user_of(text, named[1]) if named else rules[0]
    raise place.refusal(f"the rule `{where}` cannot be converted: {problem[:200]}")


def _rule_at(text: str, position: int) -> str:
    """The rule that the position is in."""
    begun = [match[1] for match in _RULE.finditer(text) if match.start() <= position]
    return begun[-1] if begun else text[:40]


def _user_of(text: str, name: str) -> str:
    """The rule that names rule `name`."""
    named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])(?!\s*::=)", text)
    return _rule_at(text, named.start()) if named else name
