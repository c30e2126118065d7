"""Two servers with random load on one folder of KV blocks: never a wrong token, nothing leaks, its size is kept.

    python -m benchmarks.disk_soak [MODEL] [--minutes 15] [--clients 3] [--size 6MiB] [--folder DIR] [--seed 0]
        [--flags "--kv-cache-memory 1MiB --block-size 32"] [--json FILE]

Prompts are drawn from a tree of beginnings, so that most begin as others did; a server without a folder has answered
all of them before, and every answer is compared with that one, token by token. One server lives all the time; the other
is ended and killed in turn, in the middle of its work, and started again. The bytes in the folder are read all the
while. The exit code is 1 when a token is another one, a request of the living server fails, a block is rejected, more
lies there than the size and 2 MiB, or when the memory of the living server grows by more than a twentieth (but 16 MiB
at least) or its descriptors by more than 8 from the first third of the time to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from benchmarks.servers import free_port
from homenode.bench.serving.server_process import end_process
from homenode.host.bind.base.threads import descendants
from homenode.units import parse_bytes

_READY_S, _ANSWER_S, _STOPPING_S = 600.0, 600.0, 60.0
_LIFE_S = (15.0, 45.0)
_PROMPTS, _BEGINNINGS, _TOKENS = 120, 12, 12
_BEYOND = 2 << 20
_LEAST_GROWTH, _MOST_DESCRIPTORS = 16 << 20, 8


class ServedFolder:
    """A server, with the folder or without one."""

    def __init__(self, model: str, flags: Sequence[str]) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "homenode", "serve", *([model] if model else []), "--port", str(port), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        ends = time.monotonic() + _READY_S
        while time.monotonic() < ends and self.process.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            time.sleep(0.05)
        raise SystemExit("a server was not ready")

    def ask(self, client: httpx.Client, prompt: list[int], seed: int) -> list[int]:
        """The tokens of an answer."""
        body = {"prompt": prompt, "max_tokens": _TOKENS, "ignore_eos": True, "return_token_ids": True}
        heat = {"temperature": 0.9, "seed": seed} if seed % 3 == 0 else {"temperature": 0}
        answer = client.post(f"{self.url}/v1/completions", json=body | heat)
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    def figure(self, name: str) -> float:
        """The sum of a metric."""
        text = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text
        return sum(map(float, re.findall(rf"^homenode:kv_disk_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)))

    def memory(self) -> tuple[int, int]:
        """Bytes and descriptors of all its processes."""
        pids = (self.process.pid, *descendants(self.process.pid))
        fds = [Path(f"/proc/{pid}/fd") for pid in pids]
        return sum(map(own_bytes, pids)), sum(len(list(fd.iterdir())) for fd in fds if fd.is_dir())


def own_bytes(pid: int) -> int:
    """Bytes of a process's memory that no file is behind, which shrink with nobody else's."""
    with suppress(OSError):
        found = re.search(r"^Anonymous:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text("ascii"), re.M)
        return int(found[1]) << 10 if found else 0
    return 0


def make_prompts(seed: int) -> list[list[int]]:
    """Prompts of which most begin as others do."""
    rng = random.Random(seed)
    heads = [[403 + rng.randrange(100) for _ in range(rng.randint(64, 300))] for _ in range(_BEGINNINGS)]
    return [
        rng.choice(heads)[: rng.randint(40, 300)] + [403 + rng.randrange(100) for _ in range(rng.randint(1, 90))]
        for _ in range(_PROMPTS)
    ]


def lying(folder: Path) -> int:
    """Bytes of all that lies there."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(at, name).lstat().st_blocks * 512
    return total


class DiskSoak:
    """Both servers, their clients, and what was seen."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given, self._folder = given, folder
        self._flags = shlex.split(given.flags)
        self._prompts = make_prompts(given.seed)
        self._over = threading.Event()
        self.answered = self.cut = self.lives = self.killed = self.most = 0
        self.problems: list[str] = []
        self.samples: list[tuple[int, int]] = []
        self.figures: dict[str, float] = {}
        self._wanted: list[list[int]] = []

    def run(self) -> None:
        """Ask until the minutes are over."""
        alone = ServedFolder(self._given.model, self._flags)
        with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
            self._wanted = [alone.ask(client, prompt, seed) for seed, prompt in enumerate(self._prompts)]
        end_process(alone.process, _STOPPING_S)
        own = [*self._flags, "--kv-disk", str(self._folder), "--kv-disk-size", self._given.size]
        stays = ServedFolder(self._given.model, own)
        threads = [threading.Thread(target=self._watch), threading.Thread(target=self._live_and_die, args=(own,))]
        threads += [threading.Thread(target=self._load, args=(stays, n, True)) for n in range(self._given.clients)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 60 * self._given.minutes
        while time.monotonic() < ends and not self.problems:
            time.sleep(min(20.0, 60 * self._given.minutes / 12))
            self.samples.append(stays.memory())
            memory, descriptors = self.samples[-1]
            told = f"{self.answered} answered, {self.lives} lives, {lying(self._folder)} bytes there"
            print(f"{told}; {memory / 1e6:.1f} MB, {descriptors} descriptors", flush=True)
        self._over.set()
        for thread in threads:
            thread.join()
        self.figures = {name: stays.figure(f"{name}_total") for name in ("hit_tokens", "stored_tokens")}
        if rejected := stays.figure("rejected_blocks_total"):
            self.problems.append(f"{rejected:.0f} blocks were rejected")
        end_process(stays.process, _STOPPING_S)
        self._judge()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, lying(self._folder))

    def _live_and_die(self, flags: Sequence[str]) -> None:
        rng = random.Random(self._given.seed + 1)
        while not self._over.is_set():
            server = ServedFolder(self._given.model, flags)
            self.lives += 1
            askers = [threading.Thread(target=self._load, args=(server, 100 + n, False)) for n in range(2)]
            for asker in askers:
                asker.start()
            self._over.wait(rng.uniform(*_LIFE_S))
            if rng.random() < 0.5 and not self._over.is_set():
                self.killed += 1
                for pid in (server.process.pid, *descendants(server.process.pid)):
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            end_process(server.process, _STOPPING_S)
            for asker in askers:
                asker.join()

    def _load(self, server: ServedFolder, number: int, stays: bool) -> None:
        rng = random.Random(1000 * self._given.seed + number + self.lives)
        with httpx.Client(timeout=_ANSWER_S, trust_env=False) as client:
            while not self._over.is_set():
                at = rng.randrange(len(self._prompts))
                try:
                    got = server.ask(client, self._prompts[at], at)
                except httpx.HTTPError as error:
                    self.cut += 1
                    if stays:
                        self.problems.append(f"a request failed: {error!r}")
                    return
                self.answered += 1
                if got != self._wanted[at]:
                    self.problems.append(f"prompt {at}: {got}, alone {self._wanted[at]}")

    def _judge(self) -> None:
        limit = parse_bytes(self._given.size)
        if self.most > limit + _BEYOND:
            self.problems.append(f"{self.most} bytes lay there, of {limit}")
        third = max(1, len(self.samples) // 3)
        first, last = self.samples[:third], self.samples[-third:]
        before, after = (statistics.median(each[0] for each in part) for part in (first, last))
        if after - before > max(_LEAST_GROWTH, before / 20):
            self.problems.append(f"memory grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB")
        grown = statistics.median(e[1] for e in last) - statistics.median(e[1] for e in first)
        if grown > _MOST_DESCRIPTORS:
            self.problems.append(f"there are {grown:.0f} descriptors more")

    def to_json(self) -> dict[str, object]:
        """All that was seen."""
        return {
            "answered": self.answered, "lives": self.lives, "killed": self.killed, "cut": self.cut,
            "most_bytes": self.most, **self.figures, "memory": [self.samples[0], self.samples[-1]],
            "problems": self.problems,
        }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was seen; 0, or 1 with what was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--size", default="6MiB")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flags", default="--kv-cache-memory 1MiB --block-size 32 --threads 1")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        soak = DiskSoak(given, Path(folder) / "kv")
        soak.run()
    told = json.dumps(soak.to_json(), indent=1)
    print(told)
    if given.json is not None:
        given.json.write_text(told + "\n")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
