"""Runs a loaded model by hand: steps of any mix of prompts and next tokens over a paged cache whose blocks lie in
disorder.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from homenode.compute.ops import Backend, FloatArray, IntArray, Program, StepArrays, StepLimits
from homenode.model.state import state_geometry_of
from homenode.model.weights.load import LoadedModel

# At which BF16 matrices are multiplied with activations rounded to bfloat16.
ROUNDING_LEVELS = frozenset({"avx512bf16", "amx", "i8mm"})


def rounds_activations(backend: Backend) -> bool:
    """Does this backend round what BF16 matrices are multiplied with?"""
    return backend.statistics().get("level") in ROUNDING_LEVELS


STATE_SLOTS = 17


@dataclass
class Sequence:
    """Tokens known so far, how many of them are in the cache, and the blocks that hold them."""

    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int | None = None  # of its state
    # Slots for copies of its state, and after which position.
    copies: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[FloatArray] = field(default_factory=list)  # the distributions its new tokens were chosen from
    adapter: int = -1  # see `StepArrays.adapters`


class Driver:
    """Compiles `model` on `backend`, or takes a `program` whose logits the backend scores, and runs steps. Blocks are
    handed out in a shuffled but fixed order.
    """

    def __init__(
        self,
        model: LoadedModel,
        backend: Backend,
        *,
        block_size: int = 32,
        blocks: int = 64,
        kv_dtype: str = "auto",
        max_tokens: int = 512,
        program: Program | None = None,
    ) -> None:
        self._backend, self._model, self._block_size = backend, model, block_size
        self._free = list(range(blocks))
        random.Random(7).shuffle(self._free)
        self._slots = list(range(STATE_SLOTS))
        random.Random(8).shuffle(self._slots)
        if program is not None:
            self._program = program
            return
        cache = backend.kv_cache(model.kv_geometry(block_size, kv_dtype), blocks)
        geometry = state_geometry_of(model.spec, model.part)
        state = None if geometry is None else backend.state_memory(geometry, STATE_SLOTS)
        self._program = backend.compile(model.forward(cache, state), StepLimits(max_tokens, 16, max_tokens, blocks))

    def step(self, work: list[tuple[Sequence, int]], every_row: bool = False) -> FloatArray:
        """Compute the next `count` tokens of each sequence.

        Returns natural log-probabilities, float32 [rows, vocabulary]: of what follows each sequence's last token, or
        every token of the step.
        """
        logits = self._run(work, every_row)
        return self._logprobs(logits, sum(count for _, count in work) if every_row else len(work))

    def rows(self, work: list[tuple[Sequence, int]]) -> FloatArray:
        """What the program makes of each sequence's last token, float32 [sequences, columns]."""
        return np.asarray(self._run(work, every_row=False))

    def _run(self, work: list[tuple[Sequence, int]], every_row: bool) -> Any:
        for sequence, count in work:
            if sequence.slot is None:
                sequence.slot = self._slots.pop()
            while len(sequence.blocks) * self._block_size < sequence.computed + count:
                sequence.blocks.append(self._free.pop())
        found = self._program.run(self._arrays(work, every_row))
        for sequence, count in work:
            sequence.computed += count
        return found

    def _arrays(self, work: list[tuple[Sequence, int]], every_row: bool) -> StepArrays:
        ids = [t for s, n in work for t in s.tokens[s.computed : s.computed + n]]
        positions = [p for s, n in work for p in range(s.computed, s.computed + n)]
        starts = np.cumsum([0] + [n for _, n in work])
        table = np.zeros((len(work), max(len(s.blocks) for s, _ in work)), np.int32)
        for i, (sequence, _) in enumerate(work):
            table[i, : len(sequence.blocks)] = sequence.blocks
        rows = np.arange(len(ids)) if every_row else starts[1:] - 1
        context = [s.computed + n for s, n in work]
        arrays = (np.array(a, np.int32) for a in (ids, positions, starts, context, table, rows))
        step = StepArrays(*arrays, **self._state_of(work))
        if any(sequence.adapter >= 0 for sequence, _ in work):
            step.adapters = np.array([sequence.adapter for sequence, _ in work], np.int32)
        return step

    def _state_of(self, work: list[tuple[Sequence, int]]) -> dict[str, IntArray]:
        copies = [
            (row, to, at) for row, (s, n) in enumerate(work) for to, at in s.copies if s.computed <= at < s.computed + n
        ]
        return {
            "state_slot": np.array([s.slot for s, _ in work], np.int32),
            "state_fresh": np.array([s.computed == 0 for s, _ in work], np.int32),
            "state_copies": np.array(copies, np.int32).reshape(-1, 3),
        }

    def _logprobs(self, logits: object, rows: int) -> FloatArray:
        vocabulary = self._model.spec.vocab_size
        scored = self._backend.score(logits, np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32), vocabulary)
        out = np.empty((rows, vocabulary), np.float32)
        np.put_along_axis(out, scored.top_tokens.astype(np.int64), scored.top_logprobs, axis=1)
        return out

    def prefill(self, tokens: list[int], chunk: int = 512) -> tuple[Sequence, FloatArray]:
        """A new sequence with all of `tokens` in the cache, computed `chunk` at a time, and the log-probabilities after
        each of them.
        """
        sequence = Sequence(list(tokens))
        parts = []
        while sequence.computed < len(tokens):
            parts.append(self.step([(sequence, min(chunk, len(tokens) - sequence.computed))], every_row=True))
        return sequence, np.concatenate(parts)

    def generate(
        self,
        prompts: list[list[int]],
        count: int,
        *,
        chunk: int = 512,
        stagger: int = 0,
        adapters: list[int] | None = None,
    ) -> list[Sequence]:
        """Continue every prompt greedily by `count` tokens, all in the same steps. `adapters`: of each; None: none.

        A step takes at most `chunk` tokens of a prompt; prompt i joins in step i * stagger, among others' next tokens.
        """
        sequences = [
            Sequence(list(p), adapter=a) for p, a in zip(prompts, adapters or [-1] * len(prompts), strict=True)
        ]
        wanted = [len(p) + count for p in prompts]
        number = 0
        while any(len(s.tokens) < n for s, n in zip(sequences, wanted, strict=True)):
            started = [s for i, s in enumerate(sequences) if i * stagger <= number]
            work = [
                (s, min(chunk, len(s.tokens) - s.computed))
                for s in started
                if len(s.tokens) < wanted[sequences.index(s)]
            ]
            number += 1
            if not work:
                continue
            for (sequence, _), row in zip(work, self.step(work), strict=True):
                if sequence.computed == len(sequence.tokens):
                    sequence.tokens.append(int(row.argmax()))
                    sequence.logprobs.append(row)
        return sequences
