"""`homenode serve --models` on machines of several nodes: models keep off each other's cores, each lies where its place
is, and a large one that comes moves a small one that nobody asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from homenode.cpuset import parse_cpu_list
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, SAID, make_heavy
from tests.lab.machine import WHOLE, own_machine, several_nodes
from tests.lab.residency import placed_memory
from tests.paths import ROOT
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [several_nodes, own_machine]
_WAIT_S = 900.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Servers of this test know of each other only."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(folder))
    return folder


class ManyServer:
    """A server of the models of a file."""

    def __init__(self, file: Path, state: Path) -> None:
        self._file, self._state, self.log = file, state, list[bytes]()
        words = [sys.executable, "-m", "homenode.cli.main", "serve", "--models", str(file), "--port", "0"]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.PIPE
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.wait(lambda: self.url, "the server is not ready")

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.log += iter(lines.readline, b"")

    @property
    def said(self) -> str:
        return b"".join(self.log).decode()

    @property
    def url(self) -> str:
        found = re.search(r"ready (http://\S+)", self.said)
        return found[1] if found else ""

    def wait(self, holds: Any, what: str) -> None:
        def looks() -> bool:
            assert self.process.poll() is None, f"the server ended, {what}: {self.said[-3000:]}"
            return bool(holds())

        wait_until(looks, lambda: f"{what}: {self.said[-3000:]}", _WAIT_S, 0.3)

    def ask(self, path: str, **words: object) -> Any:
        body = json.dumps(words).encode() if words else None
        request = urllib.request.Request(f"{self.url}{path}", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
            return json.load(answer)

    def tokens(self, model: str) -> list[int]:
        words = {"prompt": PROMPTS[0], "max_tokens": len(SAID[0]), "temperature": 0, "ignore_eos": True}
        answer = self.ask("/v1/completions", model=model, return_token_ids=True, **words)
        return list(answer["choices"][0]["token_ids"])

    def states(self) -> dict[str, dict[str, Any]]:
        return {each["id"]: each["status"] for each in self.ask("/v1/models")["data"]}

    def all_loaded(self) -> bool:
        return all(status["value"] == "loaded" for status in self.states().values())

    def engines(self) -> dict[str, int]:
        """The engine's process of each model that is loaded, by what it is called."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        words = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in children}
        engines = {pid: said for pid, said in words.items() if any("homenode.engine.runtime" in word for word in said)}
        return {name: pid for name in self.states() for pid, said in engines.items() if any(name in w for w in said)}

    def claimed(self) -> set[int]:
        """CPUs that it claims for its models."""
        (file,) = self._state.glob("claims-*.json")
        found = json.loads(file.read_text())["claims"]
        return {cpu for each in found if each["pid"] == self.process.pid for cpu in parse_cpu_list(each["cpus"])}

    def computing(self) -> dict[str, set[int]]:
        """The CPUs to which threads of each model are bound, one each, as the kernel has it."""
        return {name: bound_cpus(pid) for name, pid in self.engines().items()}

    def rewrite(self, models: Mapping[str, Mapping[str, object]]) -> None:
        write(self._file, models)
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_WAIT_S)
        self.process.kill()
        self._reader.join()
        return self.process.wait()


def bound_cpus(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", (task / "status").read_text(), re.MULTILINE)
            if allowed and len(cpus := parse_cpu_list(allowed[1])) == 1:
                found.update(cpus)
    return found


def write(file: Path, models: Mapping[str, Mapping[str, object]]) -> None:
    tables = ("".join(f"{key} = {json.dumps(value)}\n" for key, value in each.items()) for each in models.values())
    file.write_text("".join(f"[models.{name}]\n{table}\n" for name, table in zip(models, tables, strict=True)))


@pytest.fixture
def model(tmp_path: Path) -> dict[str, object]:
    """With a policy, so that weights and KV memory can be told from all else that the process has."""
    path = make_heavy(tmp_path / "heavy.gguf")
    few = {"kv-cache-memory": "4MiB", "max-num-batched-tokens": 64, "on_demand": False}
    return {"path": str(path), "numa": "shard", **few}


@pytest.fixture
def server(model: Mapping[str, object], tmp_path: Path, state: Path) -> Iterator[ManyServer]:
    """One with a small model; emulated processors take a minute for each process."""
    file = tmp_path / "models.toml"
    write(file, {"small": model})
    running = ManyServer(file, state)
    try:
        yield running
    finally:
        code = running.close()
    assert (code, "Traceback" in running.said) == (0, False), running.said[-3000:]


def test_models_lie_apart_and_a_large_one_moves_a_small_one(server: ManyServer, model: Mapping[str, object]) -> None:
    server.wait(server.all_loaded, "it is not loaded")
    before = server.states()["small"]
    assert len(before["nodes"]) == 1
    check_places(server)
    large = {**model, "kv-cache-memory": int(0.55 * sum(node.memory for node in WHOLE))}  # too much for any node
    over = threading.Event()
    watched = threading.Thread(target=watch_cores, args=(server, over, shared := list[str]()))
    watched.start()
    try:
        server.rewrite({"small": model, "large": large})
        server.wait(lambda: "large" in server.states() and server.all_loaded(), "the large one is not loaded")
    finally:
        over.set()
        watched.join()
    assert not shared, shared
    after = server.states()
    assert len(after["large"]["nodes"]) > 1
    assert after["small"]["cpus"] != before["cpus"], "it has found cores that nobody had"
    check_places(server)


def check_places(server: ManyServer) -> None:
    """All say the same, on cores of their own, and lie where they are said to."""
    states, engines = server.states(), server.engines()
    assert set(engines) == set(states)
    planned = {name: set(parse_cpu_list(status["cpus"])) for name, status in states.items()}
    assert server.claimed() == set().union(*planned.values())
    for name, status in states.items():
        assert server.tokens(name) == SAID[0], name
        memory, nodes = placed_memory(engines[name]), set(status["nodes"])
        assert memory.total >= MATRIX_BYTES and memory.remote == 0, (name, memory)
        held = {node.id: memory.on(node.id) for node in WHOLE}
        assert {node for node, size in held.items() if size} == nodes, (name, held)
    computing = server.computing()
    assert all(computing[name] and computing[name] <= planned[name] for name in states), (computing, planned)
    assert not overlapping(computing), computing


def watch_cores(server: ManyServer, over: threading.Event, shared: list[str]) -> None:
    while not over.wait(0.2):
        if overlapping(computing := server.computing()):
            shared.append(str(computing))


def overlapping(cpus: Mapping[str, set[int]]) -> bool:
    return sum(map(len, cpus.values())) != len(set().union(*cpus.values()))
