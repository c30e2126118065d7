"""Matchers of llguidance within our bounds, and what went wrong in one in a sentence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from homenode.grammars.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

# Bounds of one grammar in work and memory; a step of ours is at most some milliseconds.
_LIMITS = {
    "max_items_in_row": 20_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 400_000,
    "step_max_items": 300_000,
    "max_lexer_states": 20_000,  # of up to 2 kB
    "max_grammar_size": 300_000,
    "verbose_errors": False,
}
_LONGEST_REASON = 300  # characters
_WHERE = re.compile(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?(Unsatisfiable schema: )?")
_PANIC = "PanicException"  # of pyo3_runtime, a module that cannot be imported


def make_matcher(vocabulary: Vocabulary, grammar: str) -> LLMatcher:
    """At the beginning of the text of a grammar in Lark. ValueError for one that llguidance does not take.

    Gives the interpreter free while it works.
    """
    from llguidance import LLMatcher, LLParserLimits

    try:
        matcher = LLMatcher(vocabulary.library, _unforced(grammar), log_level=0, limits=LLParserLimits(**_LIMITS))
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            raise ValueError(_shortened(str(error))) from None
        raise
    if matcher.is_error():
        raise ValueError(reason_of(matcher))
    return matcher


def try_grammar_text(vocabulary: Vocabulary, grammar: str) -> None:
    """ValueError for a grammar in Lark that llguidance does not take, or of which no text can begin."""
    matcher = make_matcher(vocabulary, grammar)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(reason_of(matcher))


def grammar_fault(grammar: str) -> str | None:
    """Return why a grammar in Lark is none, whatever the vocabulary; None if it is one."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        wrong, messages = LLMatcher.validate_grammar_with_warnings(_unforced(grammar), limits=LLParserLimits(**_LIMITS))
        return _shortened(messages[0]) if wrong else None
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            return _shortened(str(error))
        raise


def _unforced(grammar: str) -> str:
    """The model cuts its text into tokens itself, also where the grammar leaves it one text only."""
    return f'%llguidance {{"no_forcing": true}}\n{grammar}'


def reason_of(matcher: LLMatcher) -> str:
    """Return what is wrong with a matcher that is in error, in a line."""
    return _shortened(str(matcher.get_error()))


def _shortened(text: str) -> str:
    """The first line, without where llguidance was at, and what a regular expression lacks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    first = _WHERE.sub("", lines[0])
    if first.endswith("regex parse error:"):
        first = next((line for line in lines if line.startswith("error:")), first).removeprefix("error: ")
    return first[:_LONGEST_REASON]
