"""An engine that hands KV over and notes when: `python -m benchmarks.stamped_engine MODEL SETTINGS`, for
`benchmarks.hand_off`.

SETTINGS are an engine's, as JSON. It writes what it publishes as the first line, then answers each line of JSON with
one: a prompt, its ticket and, to a sender, what the receiver publishes; when the request has ended, the seconds
(CLOCK_MONOTONIC) of what happened to its ticket.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.messages import Outputs, Submit
from homenode.engine.request import Request
from homenode.engine.runtime.build import build_engine
from homenode.engine.runtime.inbox import Inbox
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.events import Instruction, ToTransfer
from homenode.sampling import SamplingParams
from homenode.transfer.scheduler_events import Arrived, Computed, KvTicket
from homenode.transfer.wire.message import encode_published

_PATIENCE_S = 60.0


class StampedCore(EngineCore):
    """`stamps`: by ticket, when the step's result came that brought the last pages, when the agent was to be told of
    them, when that was done; and at the receiver, when the scheduler was told that they are there. And the seconds that
    reading them for digests took."""

    stamps: dict[str, dict[str, float]]
    copied: Callable[[], float]  # seconds of digests so far
    _came = _before = 0.0

    def _result_came(self) -> None:
        self._came = time.monotonic()
        super()._result_came()

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            told = instruction.message if isinstance(instruction, ToTransfer) else None
            if isinstance(told, Computed) and told.last:
                before, begun = self.copied(), time.monotonic()
                super()._obey([instruction])
                stamps = self.stamps.setdefault(told.ticket, {})
                stamps.update(
                    result=self._came, computed=begun, announced=time.monotonic(), digests=self.copied() - before
                )
            else:
                super()._obey([instruction])

    def _take(self, item: object) -> None:
        if isinstance(item, Arrived):
            stamps, now, copied = self.stamps.setdefault(item.ticket, {}), time.monotonic(), self.copied()
            stamps.update(arrived=now, verifying=stamps.get("verifying", 0.0) + copied - self._before)
            self._before = copied
        super()._take(item)


def main(model: Path, settings: dict[str, Any]) -> None:
    """Serve until the input ends."""
    config = EngineConfig.of(None, {"disable_log_stats": True, **settings})
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(model)))
    engine, inbox, ends = build_engine(EngineAssignment(config), None), Inbox(), SimpleQueue[int]()
    assert engine.kv_transfer is not None
    agent = engine.kv_transfer.start(inbox.put)

    def send(message: object) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                if output.finish_reason is not None:
                    ends.put(output.id)

    core = StampedCore(engine.scheduler, engine.executor, send, inbox=inbox, agent=agent, log_stats=False)
    core.stamps, core.copied = {}, lambda: agent.statistics().copy_seconds

    def run() -> None:
        inbox.work_for(agent)
        core.run()

    thread = threading.Thread(target=run, name="homenode-engine", daemon=True)
    thread.start()
    sends = config.transfer.pd_role == "sender"
    print(encode_published(engine.kv_transfer.published).decode(), flush=True)
    for number, line in enumerate(sys.stdin):
        order = json.loads(line)
        kv = KvTicket(order["ticket"], sends, order.get("peer", "").encode())
        params = SamplingParams(max_tokens=0 if sends else 1, temperature=0, ignore_eos=True)
        core.post(Submit([Request(id=number + 1, prompt_ids=order["prompt"], params=params, kv=kv)]))
        ends.get(timeout=_PATIENCE_S)
        print(json.dumps(core.stamps.pop(order["ticket"], {})), flush=True)
    core.stop()
    thread.join(_PATIENCE_S)
    engine.kv_transfer.close(1.0)
    engine.executor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
