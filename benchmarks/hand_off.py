"""The hand-off between two real engines of this host, from the result of a prompt's last step to the receiver's
scheduler: `python -m benchmarks.hand_off`.

Prefill and decode run as in `homenode serve`, without HTTP: loop, executor, scheduler and agent of each in a process.
One prompt after another; the receiver has nothing else to do. What `homenode bench transfer` takes for the scheduler's
part between a step's result and the announcement is measured here.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

import homenode
from homenode.cli.benchmarks.options import Numbers

_BUILTIN = Path(homenode.__file__).parent / "builtin"
_HAND_OFF = "hand-off: announcement to scheduler"
_LEGS = {
    "result to announcement": ("result", "computed"),
    "announcement, until the loop goes on": ("computed", "announced"),
    _HAND_OFF: ("computed", "arrived"),
    "result to scheduler": ("result", "arrived"),
}


class _Engine:
    """One of the two."""

    def __init__(self, model: Path, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.stamped_engine", str(model), json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.document = self._line()

    def ask(self, **order: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException("an engine has ended; what it said is above")
        return line.strip()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def measure(model: Path, tokens: int, turns: int, in_place: bool, block_size: int) -> list[dict[str, float]]:
    """Seconds of each leg, of each prompt after the first."""
    common = {
        "threads": 1,
        "block_size": block_size,
        "kv_cache_memory": "256MiB",
        "pd_pull_mode": True,
        "pd_buffer_size": "128MiB",
    }
    receiver = _Engine(model, {**common, "pd_role": "receiver", "pd_in_place": in_place})
    sender = _Engine(model, {**common, "pd_role": "sender"})
    draw, found = random.Random(1), []
    try:
        for turn in range(turns + 1):
            prompt, ticket = [draw.randrange(5, 300) for _ in range(tokens)], f"hand-off-{turn}"
            stamps = sender.ask(prompt=prompt, ticket=ticket, peer=receiver.document)
            stamps |= receiver.ask(prompt=prompt, ticket=ticket)
            if turn:
                legs = {name: stamps[end] - stamps[begin] for name, (begin, end) in _LEGS.items()}
                legs["digests on both sides"] = stamps["digests"] + stamps["verifying"]
                legs["hand-off without digests"] = legs[_HAND_OFF] - legs["digests on both sides"]
                found.append(legs)
    finally:
        receiver.end()  # what it reads in place is lent until then
        sender.end()
    return found


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True), default=_BUILTIN)
@click.option("--prompt-tokens", "prompts", type=Numbers(), default="65,385", show_default=True)
@click.option("--block-size", type=int, default=32, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=40, show_default=True)
@click.option("--copied", is_flag=True, help="The receiver copies pages instead of reading them in place.")
def main(model: Path, prompts: tuple[int, ...], block_size: int, turns: int, copied: bool) -> None:
    """Print medians, the tenth part and the best of each leg in microseconds."""
    for tokens in prompts:
        found = measure(model, tokens, turns, not copied, block_size)
        for name in found[0]:
            times = sorted(one[name] * 1e6 for one in found)
            click.echo(
                f"{tokens:6} tokens  {name:40} median {statistics.median(times):7.1f}  tenth "
                f"{times[len(times) // 10]:7.1f}  best {times[0]:7.1f} us"
            )


if __name__ == "__main__":
    main()
