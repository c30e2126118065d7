"""An engine that decodes on request: `python decode_turns.py SETTINGS` with the source tree whose engine it is on
PYTHONPATH.

SETTINGS is a JSON object: `settings` of the engine by name, and `build`, further arguments of `build_engine`. A line on
standard input is the number of requests, of tokens in the prompt of each, and of tokens to draw; a line of JSON answers
it: `rate`, tokens a second while all were decoding, and of each stage, where there are several, `busy` and `wait` as
shares of that time. The first line, before any, is the version. Uses only what engines of older trees have as well.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

from homenode import __version__
from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Outputs, Submit
from homenode.engine.request import Request
from homenode.engine.runtime.build import build_engine
from homenode.engine.runtime.loop import EngineCore
from homenode.sampling import SamplingParams

_LIMIT_S = 300.0  # of one turn

# The time, tokens so far, and by stage seconds it was busy and waited.
Reading = tuple[float, int, dict[str, tuple[float, float]]]


class DecodeTurns:
    """An engine and what it says, for one turn after the other."""

    def __init__(self, settings: dict[str, Any], build: dict[str, Any]) -> None:
        self._engine = build_engine(
            EngineAssignment(EngineConfig.of(settings.pop("model"), settings)), own_process=True, **build
        )
        self._vocabulary = self._engine.ready.vocab_size
        self._core = EngineCore(self._engine.scheduler, self._engine.executor, self._take, log_stats=False)
        self._counts: dict[int, int] = {}
        self._first: Reading = (0.0, 0, {})
        self._last: Reading = (0.0, 0, {})
        self._wanted, self._failed, self._ended = 0, "", threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def turn(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        """Decode. RuntimeError when a request fails or the time is over."""
        draw = random.Random(batch)
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
        requests = []
        for _ in range(batch):
            self._number += 1
            ids = [draw.randrange(1, self._vocabulary) for _ in range(prompt)]
            requests.append(Request(id=self._number, prompt_ids=ids, params=params))
        self._ended.clear()
        self._first, self._last, self._wanted = (0.0, 0, {}), (0.0, 0, {}), tokens
        self._counts = {request.id: 0 for request in requests}
        self._core.post(Submit(requests))
        if not self._ended.wait(_LIMIT_S) or self._failed:
            raise RuntimeError(self._failed or f"{batch} requests were not done in {_LIMIT_S:g} s")
        (begin, before, idle), (end, after, busy) = self._first, self._last
        seconds = end - begin
        shares = {stage: [(b - a) / seconds for a, b in zip(idle[stage], busy[stage], strict=True)] for stage in busy}
        return {"rate": (after - before) / seconds, "stages": shares}

    def close(self) -> None:
        """End the engine."""
        self._core.stop()
        self._thread.join()
        self._engine.executor.close()

    def _run(self) -> None:
        try:
            self._core.run()
        except Exception as error:  # told to the thread that waits for the end
            self._failed = f"{type(error).__name__}: {error}"
            self._ended.set()

    def _take(self, message: object) -> None:
        """Counts tokens. The time goes from when everybody has an eighth of theirs to when the first has all."""
        if not isinstance(message, Outputs):
            return
        for output in message.outputs:
            self._counts[output.id] += len(output.tokens)
            if output.finish_reason not in (None, "length"):
                self._failed = f"a request ended with {output.finish_reason}: {output.error}"
                self._ended.set()
        counts = self._counts.values()
        if not self._first[0] and min(counts) >= self._wanted // 8:
            self._first = self._reading()
        if not self._last[0] and max(counts) >= self._wanted:
            self._last = self._reading()
        if min(counts) >= self._wanted:
            self._ended.set()

    def _reading(self) -> Reading:
        stages = self._engine.executor.statistics().get("stages", [])
        return (
            time.perf_counter(),
            sum(self._counts.values()),
            {str(s["stage"]): (s["busy_s"], s["wait_s"]) for s in stages},
        )


def main() -> None:
    """Take turns until there is no further line."""
    asked = json.loads(sys.argv[1])
    turns = DecodeTurns(asked["settings"], asked.get("build", {}))
    try:
        print(json.dumps({"version": __version__, "stages": turns._engine.ready.details.get("stages", [])}), flush=True)
        for line in sys.stdin:
            batch, prompt, tokens = map(int, line.split())
            print(json.dumps(turns.turn(batch, prompt, tokens)), flush=True)
    finally:
        turns.close()


if __name__ == "__main__":
    main()
