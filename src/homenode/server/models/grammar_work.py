"""Grammars of requests, compiled off the event loop, on threads of their own and within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from homenode.grammars.compile import CompiledGrammar, compile_grammar, keep_schema, try_grammar
from homenode.grammars.field_path import FieldPath
from homenode.grammars.kept_schema import KeptSchema
from homenode.grammars.spec import GrammarSpec
from homenode.grammars.vocabulary import TrialVocabulary, Vocabulary
from homenode.server.http.failures import ApiError
from homenode.server.interfaces.tokenizer import TokenizerLike

Result = TypeVar("Result")
_THREADS = 2
_TIMEOUT_S = 8.0
_ANY_TOKEN = 0  # stands for the end of answers where only the engine's files name it: what fits is the same


class GrammarWork:
    """Compiles for one model. What that takes is made when the first grammar comes."""

    def __init__(self, tokenizer: TokenizerLike, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary as grammars are tried with; that of the workers has all tokens that end an answer."""
        tokenizer = self._tokenizer
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        return TrialVocabulary(tokenizer, self._vocab_size, (*tokenizer.stop_token_ids, *own) or (_ANY_TOKEN,))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, "homenode-grammar")

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Ids by text of the tokens that text never makes, without those that end an answer."""
        vocabulary = self.vocabulary
        ids = sorted({*self._tokenizer.special_token_ids} - {*vocabulary.end_tokens})
        return {self._tokenizer.token_text(token): token for token in ids if token < self._vocab_size}

    async def compile(self, spec: GrammarSpec, param: str) -> CompiledGrammar:
        """The grammar of `spec`, which came by the field `param`, for `SamplingParams.grammar`. Raises UserError, and
        ApiError 400 for one that takes too long.
        """
        vocabulary = self.vocabulary
        return await self._within_time(lambda: compile_grammar(spec, vocabulary, param), param)

    async def keep(self, schema: Any, param: str, *, strict: bool) -> KeptSchema:
        """Return what grammars keep of a schema. Raises as `compile`."""
        return await self._within_time(lambda: keep_schema(schema, FieldPath(param), strict=strict), param)

    async def tried(self, text: str, param: str) -> str:
        """The grammar `text`, which was written here for a request with the field `param`. Raises as `compile`."""
        vocabulary = self.vocabulary
        return (await self._within_time(lambda: try_grammar(text, vocabulary, param), param)).text

    def close(self) -> None:
        """End the threads, if there are any."""
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=False)

    async def _within_time(self, work: Callable[[], Result], param: str) -> Result:
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(running, _TIMEOUT_S)
        except TimeoutError:
            text = (
                f"`{param}`: the grammar is not ready after {_TIMEOUT_S:g} seconds; ask for less, or for less at once"
            )
            raise ApiError(400, text, param=param, code="invalid_value") from None
