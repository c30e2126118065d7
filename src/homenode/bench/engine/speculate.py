"""What drafted tokens bring: answers of one engine with drafts and without, in turns, by the kind of work.

Plain answers come from the same engine, as requests that want no drafts; their tokens have to be the same. Every
answer begins behind a prompt that is in the prefix cache, under a salt of its own: none is drafted from the one before.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

from homenode.bench.engine.draft_workloads import WORKLOADS
from homenode.bench.runner import Interval, in_turns
from homenode.engine.api.local import LocalEngine
from homenode.engine.kv.sequence import Sequence as EngineSequence
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.speculation.acceptance import place_of
from homenode.engine.speculation.sequence_drafts import DraftedTokens, SequenceDrafts
from homenode.errors import InternalError
from homenode.sampling import SamplingParams

_CONTEXT = 128  # tokens of a random prompt
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class SpeculationSpeed:
    """The speed of one kind of work. Tokens a second of all answers at once; `ratio`: over the turns."""

    work: str
    at_once: int
    plain_tok_s: float
    drafted_tok_s: float
    ratio: Interval
    drafted: int
    accepted: int
    tokens_per_step: float  # of one answer

    def to_json(self) -> dict[str, Any]:
        """Return its figures by name; `ratio` is the median, within `ratio_low` and `ratio_high`."""
        ratio = {"ratio": self.ratio.median, "ratio_low": self.ratio.low, "ratio_high": self.ratio.high}
        return {**asdict(self), **ratio}


class KnownAnswers(DraftChoice):
    """Drafts from answers that are known: each token is right with the chance `rate`. How many are drafted is decided
    as ever. Where a model drafts, or the model's own heads, these are asked and awaited as ever, too, and only the
    tokens that they tell are others.
    """

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.rate = 0.0
        self.words = 256  # tokens that wrong ones, and the prompt, are of
        self.answers: dict[tuple[int, ...], Sequence[int]] = {}
        self._rng = random.Random(7)

    def _drafts_of(self, sequence: EngineSequence) -> SequenceDrafts | None:
        if sequence.drafts is None and (answer := self.answers.get(tuple(sequence.request.prompt_ids))):
            if not sequence.request.speculative:
                return None
            guess = [token if self._rng.random() < self.rate else (token + 1) % self.words for token in answer]
            sequence.drafts = _KnownDrafts(sequence, self, guess)
        return sequence.drafts


class _KnownDrafts(SequenceDrafts):
    """The drafts of one sequence whose answer is known."""

    __slots__ = ("_answer", "_of_workers", "_sequence")

    def __init__(self, sequence: EngineSequence, choice: KnownAnswers, answer: Sequence[int]) -> None:
        self._of_workers = choice.asks_models
        super().__init__(sequence.tokens, choice.acceptance, 0, None, "model")
        self._sequence, self._answer = sequence, answer

    def drafted(self, most: int, expected: Sequence[int] = (), forced: int = 0) -> DraftedTokens:
        if self._of_workers:
            most = min(most, len(expected))
        tokens = list(self._answer[self._sequence.num_outputs :][:most])
        return DraftedTokens(tokens, [place_of("model", number) for number in range(len(tokens))])


class _AnswerSource:
    """Asks an engine for answers of `count` tokens."""

    def __init__(self, engine: LocalEngine, count: int) -> None:
        self._engine, self._count = engine, count
        self._numbers = itertools.count(1)

    def ask(
        self, prompts: Sequence[list[int]], salt: str, *, speculative: bool, count: int | None = None, seed: int = 0
    ) -> tuple[float, list[list[int]], list[tuple[int, int]]]:
        """Seconds from the first token of all to the last one, the tokens, and how many were drafted and accepted."""
        sink: SimpleQueue[Output] = SimpleQueue()
        params = SamplingParams(max_tokens=count or self._count, temperature=0.0, ignore_eos=True, seed=seed)
        requests = [
            Request(
                id=next(self._numbers),
                prompt_ids=prompt,
                params=params,
                arrival=time.monotonic(),
                cache_salt=salt,
                speculative=speculative,
            )
            for prompt in prompts
        ]
        found: dict[int, list[int]] = {request.id: [] for request in requests}
        counts = {request.id: (0, 0) for request in requests}
        self._engine.submit(requests, sink)
        left, began = len(requests), 0.0
        while left:
            output = sink.get(timeout=_PATIENCE_S)
            if output.error is not None:
                raise InternalError(output.error)
            found[output.id] += output.tokens
            drafted, accepted = counts[output.id]
            counts[output.id] = (drafted + output.drafted_tokens, accepted + output.accepted_tokens)
            began = began or time.perf_counter()
            left -= output.finish_reason is not None
        return time.perf_counter() - began, list(found.values()), list(counts.values())


def measure_work(
    engine: LocalEngine, name: str, prompt: list[int], *, tokens: int, turns: int, at_once: int
) -> SpeculationSpeed:
    """Answer one prompt `at_once` times together, with drafts and without, in turns. InternalError where the answers
    differ.
    """
    asked, prompts = _AnswerSource(engine, tokens), [prompt] * at_once
    plain: list[float] = []
    drafted: list[float] = []
    counts = (0, 0)
    for turn, order in in_turns((True, False), turns + 1):
        salt = f"turn {turn} of {name}"
        told: dict[bool, list[list[int]]] = {}
        for speculative in order:
            asked.ask(prompts[:1], salt, speculative=False, count=1)
            seconds, told[speculative], of_drafts = asked.ask(prompts, salt, speculative=speculative)
            if not turn:
                continue  # the first is to find the prompt, and to learn what steps take
            (drafted if speculative else plain).append(seconds)
            if speculative:
                counts = (counts[0] + sum(n for n, _ in of_drafts), counts[1] + sum(n for _, n in of_drafts))
        if told[False] != told[True]:
            raise InternalError(f"{name}: answers with drafts are other answers")
    made, steps = tokens * at_once, tokens * at_once * turns - counts[1]
    return SpeculationSpeed(
        name,
        at_once,
        (made - at_once) / statistics.median(plain),
        (made - at_once) / statistics.median(drafted),
        Interval.of_ratios(plain, drafted),
        *counts,
        tokens * at_once * turns / max(1, steps),
    )


def measure_workloads(
    engine: LocalEngine,
    encode: Callable[[str], list[int]],
    names: Sequence[str],
    *,
    tokens: int,
    turns: int,
    at_once: Sequence[int],
) -> Iterator[SpeculationSpeed]:
    """The named workloads, one after the other. `encode`: makes a conversation of what a user says its token ids."""
    for name in names:
        for number in at_once:
            yield measure_work(engine, name, encode(WORKLOADS[name]), tokens=tokens, turns=turns, at_once=number)


def measure_rates(
    engine: LocalEngine,
    choice: KnownAnswers,
    rates: Sequence[float],
    *,
    tokens: int,
    turns: int,
    at_once: Sequence[int],
) -> Iterator[SpeculationSpeed]:
    """Drafts that are right at given rates, behind a random prompt."""
    rng = random.Random(3)
    words = choice.words = min(choice.words, engine.ready.vocab_size)
    prompt = [rng.randrange(words) for _ in range(min(_CONTEXT, engine.ready.max_model_len // 4))]
    _, answers, _ = _AnswerSource(engine, tokens).ask([prompt], "known", speculative=False)
    for rate in rates:
        choice.rate, choice.answers = rate, {tuple(prompt): answers[0]}
        for number in at_once:
            name = f"{rate:.0%} right"
            yield measure_work(engine, name, prompt, tokens=tokens, turns=turns, at_once=number)


def as_row(speed: SpeculationSpeed) -> Mapping[str, str]:
    """Return the columns of a table."""
    return {
        "work": speed.work,
        "at once": str(speed.at_once),
        "plain tok/s": f"{speed.plain_tok_s:.1f}",
        "drafted tok/s": f"{speed.drafted_tok_s:.1f}",
        "ratio": str(speed.ratio),
        "drafted": str(speed.drafted),
        "accepted": str(speed.accepted),
        "tokens a step": f"{speed.tokens_per_step:.2f}",
    }
