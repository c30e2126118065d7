"""The form that an answer has to have, from the words of any API to a grammar."""

from __future__ import annotations

from homenode.chat.custom_tools import Syntax
from homenode.errors import UserError
from homenode.grammars.compile import CompiledGrammar
from homenode.grammars.spec import GrammarSpec, Lark, Regex
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel


async def grammar_of(model: ServedModel, spec: GrammarSpec, param: str) -> CompiledGrammar:
    """The grammar for `SamplingParams.grammar`, compiled off the event loop. `param`: the field that `spec` came by.

    Raises ApiError 400, which names the place below `param`, for what cannot be kept.
    """
    try:
        return await model.grammars.compile(spec, param)
    except UserError as error:
        raise ApiError(400, error.message, param=error.param or param, code="invalid_value") from None


async def check_input(model: ServedModel, syntax: Syntax, definition: str, param: str) -> None:
    """Try the grammar of a custom tool's input by itself. Raises as `grammar_of`."""
    await grammar_of(model, Regex(definition) if syntax == "regex" else Lark(definition), param)
