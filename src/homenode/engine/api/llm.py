"""`LLM`: a model in this process, for Python programs.

from homenode import LLM, SamplingParams

with LLM("Qwen/Qwen3-0.6B") as llm:
    for completion in llm.generate(["One, two,", "A, b,"], SamplingParams(max_tokens=8, temperature=0)):
        print(completion.text)
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from homenode.engine.api.completion import Answer, Completion
from homenode.engine.api.completion_stream import CompletionStream
from homenode.engine.api.fitting_text import encode_beginning, encode_fitting
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig
from homenode.engine.errors import named_error
from homenode.engine.messages import EngineReady, EngineStats, Output
from homenode.engine.model_path.locate import locate_model
from homenode.engine.request import Request
from homenode.engine.token_rules import TokenRules
from homenode.errors import NotANumberError, UserError
from homenode.grammars.spec import GrammarSpec
from homenode.model.files_read import recorded_files
from homenode.model.identity import refuse_other_texts
from homenode.model.sandbox.renderer import DEFAULT_TIMEOUT_S
from homenode.model.tokenizer import Tokenizer, load_model_tokenizer
from homenode.model.tokenizer.chat_prompt import chat_prompt
from homenode.model.weights.finite_check import check_model_finite
from homenode.sampling import SamplingParams
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.engine.api.pooled import FloatArray
    from homenode.grammars.vocabulary import Vocabulary

_LOG = logging.getLogger("homenode.engine")
Prompt = str | list[int]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """Loads a model at once and keeps an engine until closed. Requests of several threads share batches."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: EngineConfig | None = None,
        tokenizer: Tokenizer | None = None,
        chat_template: str | None = None,
        chat_template_timeout: float = DEFAULT_TIMEOUT_S,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> None:
        """`model`: a Hugging Face folder, a GGUF file, a Hub id, or None for the built-in one.

        `settings`: any setting of the engine by its name, such as threads=4 or kv_cache_memory="2GiB", or by that of
        another program (docs/other-programs.md); or all of them as a `config`. `tokenizer` stands in for the model's
        own, `chat_template` (its text) for the model's template, which may take `chat_template_timeout` seconds for a
        conversation. `progress` is told (bytes done, bytes in all) while weights are read. Raises UserError,
        CheckpointError, CapacityError or HostError.
        """
        if config is not None and (settings or model is not None):
            raise UserError("give either a config or a model and settings, not both")
        config = config or EngineConfig.of(model, settings)
        for line in config.told:
            _LOG.warning("%s", line)
        if config.parallel.data_parallel_size > 1:
            raise UserError(
                f"data_parallel_size is {config.parallel.data_parallel_size}, but an LLM is one engine in this "
                "process; make several, each in a process of its own, or ask a server started by "
                "`homenode serve --data-parallel-size`",
                param="data_parallel_size",
            )
        config = locate_model(config)
        source: Path | None = getattr(tokenizer, "source", None)  # others than ours have none
        self._binds = tokenizer is None or source is not None
        if source is not None:
            config = replace(config, model=replace(config.model, vocabulary=str(source)))
        self._path = Path(str(config.model.path))
        with recorded_files() as read:
            self.tokenizer = tokenizer or load_model_tokenizer(self._path, chat_template, chat_template_timeout)
        self._ids = itertools.count(1)
        self._vocabulary: Vocabulary | None = None  # for grammars
        with contextlib.ExitStack() as owned:
            if tokenizer is None:
                owned.callback(self.tokenizer.close)
            self._engine = LocalEngine(config, progress)
            owned.callback(self._engine.close)
            if (identity := self._engine.ready.identity) is not None:
                refuse_other_texts("the program", str(self._path), identity.texts, read.texts)
            # What is forgotten ends with its last reference or the program.
            self._closed = weakref.finalize(self, owned.pop_all().close)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine. Calling it again does nothing."""
        self._closed()

    @cached_property
    def _token_rules(self) -> TokenRules:
        return TokenRules(self.tokenizer, self.ready.vocab_size)

    @property
    def ready(self) -> EngineReady:
        """Return what was loaded and what fits."""
        return self._engine.ready

    @property
    def engine(self) -> LocalEngine:
        """Return what runs the model."""
        return self._engine

    @property
    def statistics(self) -> EngineStats:
        """The engine's latest figures."""
        return self._engine.statistics

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stop: Sequence[str] = (),
        output: GrammarSpec | None = None,
        speculative: bool = True,
    ) -> list[Completion]:
        """Continue one prompt or several together; one Completion for each, in order, or `n` for each, one after
        another.

        A prompt is text or token ids. `params` is for all or one for each prompt. `stop`: strings that end the text
        before them, besides those of `params`. `output`: what every text has to be, such as
        `homenode.grammars.spec.JsonSchema(schema)`. Raises UserError or CapacityError for what cannot run, naming it;
        then nothing of the other prompts is left running either. `speculative`: tokens may be drafted.
        """
        chosen = self._prompts(prompts)
        given = (
            [params or SamplingParams()] * len(chosen)
            if params is None or isinstance(params, SamplingParams)
            else list(params)
        )
        if len(given) != len(chosen):
            raise UserError(
                f"{len(given)} params for {format_count(len(chosen), 'prompt')}; give one for all or one for each",
                param="params",
            )
        given = self._bound(given, output)
        for params_of_prompt in given:
            params_of_prompt.check()
        asked = [(ids, p.of_answer(i)) for ids, p in zip(chosen, given, strict=True) for i in range(p.n)]
        jobs = {next(self._ids): (self._answer(ids, p, stop), p) for ids, p in asked}
        self._finish(
            jobs,
            [
                self._request(number, ids, p, awaited=False, speculative=speculative)
                for number, (ids, p) in zip(jobs, asked, strict=True)
            ],
        )
        return [answer.completion(logprobs=p.logprobs is not None) for answer, p in jobs.values()]

    def chat(
        self,
        /,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        output: GrammarSpec | None = None,
        speculative: bool = True,
        **values: Any,
    ) -> Completion:
        """Answer a conversation, once. Without `params` the answer may fill the context. `output`, `speculative`: see
        `generate`. `values` go to the chat template.
        """
        ids = self._chat_prompt(messages, values)
        _refuse_several(params)
        params = params or self._rest_of_context(ids)
        return self.generate([ids], params, stop=stop, output=output, speculative=speculative)[0]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        output: GrammarSpec | None = None,
        speculative: bool = True,
    ) -> CompletionStream:
        """The text of one continuation as it is made. Closing the stream ends the request. `output`, `speculative`: see
        `generate`.
        """
        (bound,) = self._bound([params or SamplingParams()], output)
        return self._stream(self._prompts(prompt)[0], bound, stop, speculative=speculative)

    def stream_chat(
        self,
        /,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
        output: GrammarSpec | None = None,
        speculative: bool = True,
        **values: Any,
    ) -> CompletionStream:
        """The answer to a conversation as it is made. Closing the stream ends the request. `output`, `speculative`: see
        `generate`.
        """
        ids = self._chat_prompt(messages, values)
        (bound,) = self._bound([params or self._rest_of_context(ids)], output)
        return self._stream(ids, bound, stop, speculative=speculative)

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, dimensions: int | None = None, normalize: bool = True
    ) -> FloatArray:
        """A vector of each text, float32 [texts, width], of length 1 unless `normalize` is off. A text may be token
        ids.

        `dimensions`: elements that are kept of each. The model has to make vectors: as its files say, or by `LLM(...,
        runner="pooling")`. Raises UserError or CapacityError for what cannot be, naming it.
        """
        from homenode.engine.api import pooled

        width = pooled.pooling_of(self._engine).width
        if dimensions is not None and not 1 <= dimensions <= width:
            raise UserError(f"dimensions is {dimensions}; give a number from 1 to {width}", param="dimensions")
        vectors = self._pool(self._prompts(texts))[:, :dimensions]
        return pooled.normalised(vectors) if normalize else vectors

    def score(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[float]:
        """Return how near texts are: one against each of several, or as many pairs. The cosine of their vectors or, by
        a model that scores pairs, its score, from 0 to 1.
        """
        from homenode.engine.api import pooled

        pooling = pooled.pooling_of(self._engine)
        labels = pooling.labels
        ones, others = ([text] if isinstance(text, str) else list(text) for text in (first, second))
        if len(ones) not in (1, len(others)) or not others:
            raise UserError(
                f"{len(ones)} texts against {len(others)}; give one against several, or as many", param="first"
            )
        if len(labels) > 1:
            raise UserError(f"this model scores {len(labels)} labels of a text, and no pairs", param="model")
        if labels:
            pairs = zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True)
            most = self.ready.max_model_len
            encoded = [pooled.pair_ids(self.tokenizer, *pair, most, pooling.template) for pair in pairs]
            logits = self._pool([ids for ids, _ in encoded], [second for _, second in encoded])
            return [1.0 / (1.0 + math.exp(-max(-700.0, logit))) for logit in logits[:, 0].tolist()]
        vectors = pooled.normalised(self._pool(self._prompts([*ones, *others])))
        products = vectors[: len(ones)] * vectors[len(ones) :]
        return list(map(float, products.sum(axis=1, dtype=np.float64)))

    def _pool(self, prompts: Sequence[list[int]], seconds: Sequence[int] | None = None) -> FloatArray:
        """`seconds`: of each prompt where its second text begins."""
        from homenode.engine.api import pooled

        now, starts = time.monotonic(), seconds or [0] * len(prompts)
        pairs = zip(prompts, starts, strict=True)
        return pooled.pool(self._engine, [pooled.pooling_request(next(self._ids), ids, now, at) for ids, at in pairs])

    def _stream(
        self, ids: list[int], params: SamplingParams, stop: Sequence[str], *, speculative: bool
    ) -> CompletionStream:
        _refuse_several(params)
        answer = self._answer(ids, params, stop)
        request = self._request(next(self._ids), ids, params, awaited=True, speculative=speculative)
        return CompletionStream(self._pieces(request, answer), answer)

    def _pieces(self, request: Request, answer: Answer) -> Generator[str, None, None]:
        number, sink = request.id, SimpleQueue[Output]()
        self._engine.submit([request], sink)
        try:
            while answer.finish_reason is None:
                output = sink.get()
                self._raise_error(output)
                if piece := answer.feed(output):
                    yield piece
        finally:
            self._engine.abort([number])

    def _finish(self, jobs: Mapping[int, tuple[Answer, SamplingParams]], requests: list[Request]) -> None:
        """Run requests to their ends; whatever happens, none is left running."""
        sink = SimpleQueue[Output]()
        unfinished = set(jobs)
        self._engine.submit(requests, sink)
        try:
            while unfinished:
                output = sink.get()
                answer = jobs[output.id][0]
                if output.id not in unfinished:
                    continue  # a stop string matched before the engine heard of it
                self._raise_error(output)
                answer.feed(output)
                if answer.finish_reason is not None:
                    unfinished.discard(output.id)
                    if output.finish_reason is None:
                        self._engine.abort([output.id], "stop")
        finally:
            if unfinished:
                self._engine.abort(sorted(unfinished))

    def _answer(self, ids: list[int], params: SamplingParams, stop: Sequence[str]) -> Answer:
        return Answer(ids, self.tokenizer, (*((stop,) if isinstance(stop, str) else stop), *params.stop_strings))

    def _request(
        self, number: int, ids: list[int], params: SamplingParams, *, awaited: bool, speculative: bool = True
    ) -> Request:
        """`awaited`: somebody reads along, so that steps are to be short."""
        params.check()
        stops = tuple(token for token in self.tokenizer.stop_token_ids if token < self.ready.vocab_size)
        params = self._token_rules.resolved(params)
        sent = msgspec.structs.replace(params.with_defaults(self.ready.sampling_defaults).ended_by(stops), stop=[], n=1)
        return Request(
            id=number,
            prompt_ids=ids,
            params=sent,
            arrival=time.monotonic(),
            awaited=awaited,
            speculative=speculative,
        )

    def _bound(self, params: Sequence[SamplingParams], output: GrammarSpec | None) -> list[SamplingParams]:
        """Return the params with the grammar of `output`. Raises UserError for what cannot be kept."""
        if output is None:
            return list(params)
        if not self._binds:
            raise UserError(
                "output binds an answer by the vocabulary's files, and the tokenizer of this LLM was not read from "
                "files; give one of `homenode.model.tokenizer.load_tokenizer`",
                param="output",
            )
        from homenode.grammars.compile import compile_grammar
        from homenode.grammars.vocabulary import Vocabulary

        if self._vocabulary is None:
            own, size = self.tokenizer.eos_token_id, self.ready.vocab_size
            ends = (*self.tokenizer.stop_token_ids, *(() if own is None else (own,))) or (
                0,
            )  # which of them is the same
            self._vocabulary = Vocabulary(self.tokenizer, size, ends)
        grammar = compile_grammar(output, self._vocabulary, "output")
        for place in grammar.left_out:
            _LOG.warning("answers are not bound to `%s` of a schema", place)
        return [msgspec.structs.replace(each, grammar=grammar.text) for each in params]

    def _prompts(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        """Token ids of every prompt. One prompt as such, text or ids, is a list of one."""
        if isinstance(prompts, str):
            return [self._ids_of(prompts)]
        ids = [token for token in prompts if isinstance(token, int)]
        if not ids:
            return [self._ids_of(prompt) for prompt in prompts if not isinstance(prompt, int)]
        if len(ids) < len(prompts):
            raise UserError(
                "token ids and prompts are mixed; a prompt is text or one list of token ids", param="prompt"
            )
        return [self._ids_of(ids)]

    def _ids_of(self, prompt: Prompt) -> list[int]:
        counted = None if self.ready.pooling is None else self.ready.pooling.text.tokens
        ids = self._text_ids(prompt) if isinstance(prompt, str) else list(prompt[:counted])
        if not ids:
            raise UserError(
                "the prompt is empty, and this model has no token to begin a text with; give some text", param="prompt"
            )
        if not all(isinstance(token, int) for token in ids):
            raise UserError("a prompt is text or a list of token ids", param="prompt")
        return ids

    def _text_ids(self, text: str) -> list[int]:
        pooling, most = self.ready.pooling, self.ready.max_model_len
        if pooling is None:
            return encode_fitting(self.tokenizer, text, most - 1)
        whole, counted = pooling.text.of(text), pooling.text.tokens
        if counted is None:
            return encode_fitting(self.tokenizer, whole, most)
        return encode_beginning(self.tokenizer, whole, counted)

    def chat_ids(self, messages: Messages, **values: Any) -> list[int]:
        """Token ids of a conversation, as `chat` begins an answer to it. `values` go to the chat template."""
        return self._chat_prompt(messages, values)

    def _chat_prompt(self, messages: Messages, values: Mapping[str, Any]) -> list[int]:
        others = {name: value for name, value in values.items() if name != "tools"}
        made = chat_prompt(self.tokenizer, messages, values.get("tools") or (), others)
        for sent in made.left_out:
            if not sent.by_template:
                _LOG.warning("the chat template does not show `%s` of a conversation", sent.name)
        return self._ids_of(self.tokenizer.encode_chat(made.text))

    def _rest_of_context(self, ids: list[int]) -> SamplingParams:
        return SamplingParams(max_tokens=max(1, self.ready.max_model_len - len(ids)))

    def _raise_error(self, output: Output) -> None:
        """Raise what the engine says of a request that failed; CheckpointError where it computed a NaN because the
        model's file holds one.
        """
        if output.error is not None:
            if output.error_kind == NotANumberError.__name__:
                check_model_finite(self._path)
            raise named_error(output.error_kind, output.error, output.retry_after_s)


def _refuse_several(params: SamplingParams | None) -> None:
    """Raises UserError for `n` above 1 where there is one answer only."""
    if params is not None and params.n != 1:
        raise UserError(f"n is {params.n}, and here is one answer; `generate` gives several", param="n")
