"""A server under requests of random lengths for a long time: KV memory grows and goes back, nothing leaks, pages stay
where they belong.

    python -m benchmarks.soak [MODEL] [--minutes 30] [--clients 8] [--quiet 20] [--flags "--threads 2"] [--seed 0]
        [--json FILE]

The server gives KV memory back after 5 seconds of disuse. Rounds of random length, in which random numbers of clients
ask for completions of random lengths, a tenth of which are left before their end, alternate with `--quiet` seconds in
which nothing is asked. At the end of each round and of each quiet time the memory of all processes, KV memory and open
descriptors are read, and `homenode verify` is asked. The exit code is 1 when a request fails, when KV memory does not
grow or go back, when `verify` is not content, or when the memory of quiet times grows by more than a twentieth (but 16
MiB at least) or their descriptors by more than 8 from the first third of the time to the last.
"""

from __future__ import annotations

import argparse
import random
import re
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from homenode.bench.runner import keep_record
from homenode.bench.serving.server_process import end_process, pss_bytes
from homenode.host.bind.base.threads import descendants

_RELEASE = "5s"
_READY_S = 600.0
_STOPPING_S = 60.0
_ANSWER_S = 300.0
_LONGEST_ROUND_S = 45.0
_LEFT_ONE_IN = 10  # requests whose client goes away
_LEAST_GROWTH = 16 << 20  # bytes of memory that are no leak
_MOST_DESCRIPTORS = 8


@dataclass(frozen=True)
class Sample:
    """At the end of a round or of a quiet time: seconds since the start, bytes of all processes (shared ones once) and
    of KV memory, descriptors, and what `verify` ended with."""

    seconds: float
    quiet: bool
    resident: int
    kv: int
    descriptors: int
    verified: int


class Soak:
    """The server, its clients, and what was seen."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._random = given, random.Random(given.seed)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "homenode"]
        model = [given.model] if given.model else []
        flags = ["--port", str(port), "--kv-cache-release", _RELEASE, *shlex.split(given.flags)]
        self.process = subprocess.Popen([*self._command, "serve", *model, *flags])
        self.samples: list[Sample] = []
        self.answered = self.left = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """Rounds and quiet times until the minutes are over."""
        self._wait_until_ready()
        begin = time.monotonic()
        while time.monotonic() - begin < 60 * self._given.minutes and not self.failures:
            self._round()
            self.samples.append(self._sample(begin, quiet=False))
            time.sleep(self._given.quiet)
            self.samples.append(self._sample(begin, quiet=True))
            print(_line(self.samples[-2]), _line(self.samples[-1]), f"{self.answered} answered", sep="; ", flush=True)

    def close(self) -> None:
        """End the server."""
        end_process(self.process, _STOPPING_S)

    def problems(self) -> list[str]:
        """What was wrong; empty: nothing."""
        busy, quiet = ([each for each in self.samples if each.quiet is of] for of in (False, True))
        if len(quiet) < 3:
            return [*self.failures, f"{len(quiet)} quiet times are too few to tell"]
        found = list(self.failures)
        if bad := sum(each.verified != 0 for each in self.samples):
            found.append(f"verify was not content {bad} times")
        most, rest = max(each.kv for each in busy), statistics.median(each.kv for each in quiet)
        if most <= rest:
            found.append(f"KV memory did not go back: {most} bytes at most, {rest:.0f} when quiet")
        third = max(1, len(quiet) // 3)
        first, last = (
            [statistics.median(getattr(each, name) for each in part) for name in ("resident", "descriptors")]
            for part in (quiet[:third], quiet[-third:])
        )
        if last[0] - first[0] > max(_LEAST_GROWTH, first[0] / 20):
            found.append(f"memory of quiet times grew from {first[0] / 1e6:.0f} to {last[0] / 1e6:.0f} MB")
        if last[1] - first[1] > _MOST_DESCRIPTORS:
            found.append(f"descriptors of quiet times grew from {first[1]:.0f} to {last[1]:.0f}")
        return found

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with exit code {self.process.returncode}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the server was not ready within {_READY_S:g} s")

    def _round(self) -> None:
        until = time.monotonic() + self._random.uniform(5, _LONGEST_ROUND_S)
        clients = [
            threading.Thread(target=self._ask, args=(until, random.Random(self._random.random())))
            for _ in range(self._random.randint(1, self._given.clients))
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def _ask(self, until: float, chance: random.Random) -> None:
        with httpx.Client(base_url=self.url, timeout=_ANSWER_S, trust_env=False) as client:
            while time.monotonic() < until:
                prompt = [chance.randrange(100, 200) for _ in range(int(2 ** chance.uniform(1, 8.5)))]
                body = {
                    "prompt": prompt,
                    "max_tokens": int(2 ** chance.uniform(0, 7.5)),
                    "ignore_eos": True,
                    "stream": True,
                }
                leaves = chance.randrange(_LEFT_ONE_IN) == 0
                try:
                    self._stream(client, body, leaves)
                except httpx.HTTPError as error:
                    with self._lock:
                        self.failures.append(f"a request failed: {error!r}")
                    return

    def _stream(self, client: httpx.Client, body: dict[str, Any], leaves: bool) -> None:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise httpx.HTTPError(f"status {answer.status_code}: {answer.read()[:200]!r}")
            last = ""
            for line in answer.iter_lines():
                last = line or last
                if leaves and line:
                    break
        with self._lock:
            if leaves:
                self.left += 1
            elif last == "data: [DONE]":
                self.answered += 1
            else:
                self.failures.append(f"an answer ended with {last[:200]!r}")

    def _sample(self, begin: float, *, quiet: bool) -> Sample:
        pids = (self.process.pid, *descendants(self.process.pid))
        metrics = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text
        kv = sum(
            float(value) for value in re.findall(r'^homenode:memory_bytes\{[^}]*use="kv"[^}]*\} (\S+)$', metrics, re.M)
        )
        verified = subprocess.run(
            [*self._command, "verify", "--pid", str(self.process.pid)], capture_output=True, timeout=120
        )
        resident = sum(pss_bytes(pid) or 0 for pid in pids)  # one that ended meanwhile has none
        descriptors = sum(
            len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids if Path(f"/proc/{pid}/fd").is_dir()
        )
        return Sample(round(time.monotonic() - begin, 1), quiet, resident, int(kv), descriptors, verified.returncode)


def _line(sample: Sample) -> str:
    when = "quiet" if sample.quiet else f"{sample.seconds:.0f} s"
    return (
        f"{when}: {sample.resident / 1e6:.0f} MB, of which KV {sample.kv / 1e6:.0f}, {sample.descriptors} descriptors"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is seen; 0, or 1 with the reasons."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=str(__doc__).split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--quiet", type=float, default=20, help="seconds without requests after each round")
    parser.add_argument("--flags", default="", help="of `homenode serve`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    soak = Soak(given)
    try:
        soak.run()
    finally:
        soak.close()
    problems = soak.problems()
    found = {
        "minutes": given.minutes, "answered": soak.answered, "left": soak.left,
        "problems": problems, "samples": [asdict(each) for each in soak.samples],
    }  # fmt: skip
    keep_record(given.json, **found)
    print(
        f"{soak.answered} answered, {soak.left} left by their clients, {len(soak.samples) // 2} rounds: "
        f"{'; '.join(problems) or 'nothing wrong'}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
