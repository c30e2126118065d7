"""From a wish to a grammar: checked, bounded in size and time, and remembered."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.errors import UnsupportedError
from homenode.grammars.spec import GrammarSpec
from homenode.grammars.vocabulary import Vocabulary


@dataclass(frozen=True)
class CompiledGrammar:
    """`text`: the grammar serialised as llguidance reads it, a JSON object {"grammars": [{"name"?, "lark_grammar"}]} whose
    first grammar has the rule `start`; what `SamplingParams.grammar` carries.
    """

    text: str


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary, param: str) -> CompiledGrammar:
    """The grammar of `spec`, from memory where it was made before. Takes up to some seconds; for any thread.

    Raises UserError for what cannot be kept, is impossible or too large; it names the place, beginning with `param`,
    the field that the wish came by.
    """
    raise UnsupportedError(f"`{param}`: structured output is not there yet", param=param)


def nest_grammar(top: str, name: str, inner: str) -> str:
    """The serialised grammar with the Lark grammar `top`, whose rules may say `@name` for the text of `inner`.

    `inner` is `CompiledGrammar.text`. For grammars of messages, whose content is bound after thoughts or beside calls.
    """
    raise UnsupportedError("structured output is not there yet")
