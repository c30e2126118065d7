"""How much is drafted of a real model's answers, and what it would bring by what rows cost: no clock, so a machine that
others use gives the same figures.

    python -m benchmarks.draft_replay MODEL [--tokens 128] [--fourth 1.06,1.38] [--threads N] [--json FILE]

The model answers the conversations of `homenode bench speculate` once, without drafts. Then its answers are given again
token by token to what decides how much is drafted, as an engine asks it, and each step takes what steps of so many rows
are said to: one of four rows `--fourth` times as much as one of one, the others on the line through both. Printed are
the tokens of a step and how many times as fast an answer is; a step that waits for tokens takes 2 % more.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from homenode.bench.engine.draft_workloads import WORKLOADS
from homenode.engine.api.llm import LLM
from homenode.engine.kv.prefix import HashChain
from homenode.engine.kv.sequence import Sequence as EngineSequence
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.speculation.config import Speculation
from homenode.sampling import SamplingParams

_STEP_S = 0.010  # of one row
_WAIT = 0.02  # of that, lost where a step waits for tokens
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Replay:
    """One answer under one price of rows."""

    work: str
    fourth: float
    tokens_per_step: float
    ratio: float
    drafted: int
    accepted: int


class _Steps:
    """What steps take, and what is decided by it: kept from one answer to the next, as an engine keeps it."""

    def __init__(self, fourth: float) -> None:
        self.fourth, self._costs = fourth, StepCosts()
        self._choice = DraftChoice(Speculation("auto", None, 8, 2), self._costs)
        for _ in range(8):
            self._take(1)

    def replay(self, work: str, prompt: Sequence[int], answer: Sequence[int]) -> Replay:
        """Give one answer."""
        sequence = _begun(prompt, answer)
        self._choice.prepare(sequence, len(prompt))
        done, steps, seconds, drafted, accepted, waited = 1, 0, 0.0, 0, 0, False
        while done < len(answer):
            tokens = self._choice.drafts([sequence], _load(1), 64).get(0, ()) if waited else ()
            right = _right(tokens, answer[done:])
            if tokens:
                self._choice.learn(sequence, tokens, right)
            seconds += self._take(1 + len(tokens)) + waited * _WAIT * _STEP_S
            steps, drafted, accepted = steps + 1, drafted + len(tokens), accepted + right
            waited = bool(tokens) or self._choice.awaits([sequence])
            sequence.tokens += answer[done : done + right + 1]
            done += right + 1
        made = len(answer) - 1
        return Replay(work, self.fourth, made / steps, made * _STEP_S / seconds, drafted, accepted)

    def _take(self, rows: int) -> float:
        seconds, load = _STEP_S * (1.0 + (self.fourth - 1.0) / 3.0 * (rows - 1)), _load(rows)
        self._costs.learn(load, NO_LOAD, seconds)
        self._choice.rows.learn(load, seconds)
        return seconds


def _load(rows: int) -> StepLoad:
    return StepLoad(rows, rows, 0, 0, 1)


def _right(tokens: Sequence[int], there: Sequence[int]) -> int:
    return next((n for n, token in enumerate(tokens) if n >= len(there) or token != there[n]), len(tokens))


def _begun(prompt: Sequence[int], answer: Sequence[int]) -> EngineSequence:
    """The sequence that has drawn its first token."""
    params = SamplingParams(max_tokens=len(answer) + 1, ignore_eos=True)
    request = Request(id=1, prompt_ids=list(prompt), params=params, arrival=0.0)
    longest = len(prompt) + len(answer) + 1
    return EngineSequence(request, params, (0, 0.0, 1), longest, HashChain(b"", 32, ""), [*prompt, answer[0]])


def answers_of(model: str, tokens: int, threads: int | None) -> dict[str, tuple[list[int], list[int]]]:
    """The prompt and the answer of each kind of work, made together without drafts."""
    with LLM(model, threads=threads, max_model_len=4096, kv_cache_memory="512MiB", speculative="off") as llm:
        sink: SimpleQueue[Output] = SimpleQueue()
        prompts = {name: llm.chat_ids([{"role": "user", "content": text}]) for name, text in WORKLOADS.items()}
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        names = dict(enumerate(prompts, 1))
        found: dict[int, list[int]] = {number: [] for number in names}
        asked = [
            Request(id=number, prompt_ids=prompts[name], params=params, arrival=time.monotonic())
            for number, name in names.items()
        ]
        llm.engine.submit(asked, sink)
        left = len(asked)
        while left:
            output = sink.get(timeout=_PATIENCE_S)
            if output.error is not None:
                raise RuntimeError(output.error)
            found[output.id] += output.tokens
            left -= output.finish_reason is not None
    return {name: (prompts[name], found[number]) for number, name in names.items()}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--fourth", default="1.06,1.38")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    answers = answers_of(given.model, given.tokens, given.threads)
    found: list[Replay] = []
    for fourth in map(float, given.fourth.split(",")):
        steps = _Steps(fourth)
        for work, (prompt, answer) in answers.items():
            found.append(replay := steps.replay(work, prompt, answer))
            print(
                f"{work:12} four rows {fourth:.2f}: {replay.tokens_per_step:.2f} tokens a step, {replay.ratio:.2f} "
                f"times as fast, {replay.accepted} of {replay.drafted} accepted"
            )
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
