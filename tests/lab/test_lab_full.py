"""A node that is full, with page cache or with memory of others: what is refused, what is made room for, and what is
told of pages that lie elsewhere.

Engines are in this process, where one is enough: interpreters start slowly on emulated processors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode import LLM, SamplingParams
from homenode.engine.binding import EngineBinding
from homenode.engine.executor import inline_workers
from homenode.engine.memory import numa
from homenode.errors import HostError
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from tests.host.children import child
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, SAID, make_heavy
from tests.lab.machine import NODES, WHOLE, homenode, own_machine, several_nodes, start
from tests.lab.residency import PAGE, PlacedMemory, move, placed_memory
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
from homenode.compute.native import NativeBackend

pytestmark = [several_nodes, own_machine, pytest.mark.usefixtures("as_before")]
KV, MIB, AWAY = 2 << 20, 1 << 20, 256 << 10
FLAGS = ("--kv-cache-memory", KV, "--kv-cache-prealloc", "--max-num-batched-tokens", 64)
# A node does not stay as full as it was made: the kernel drops file pages.
MUCH = ("--kv-cache-memory", 64 * MIB, "--kv-cache-prealloc", "--max-num-batched-tokens", 64)
_KEPT = Path("/proc/sys/vm/min_free_kbytes")  # what the kernel keeps for itself, shared out over the nodes
_LITTLE = 4096
_NEARLY = 6 << 20  # with less than so much too much a node is full; the kernel keeps some file pages whatever is asked
_ROUNDS = 256  # while a node is being filled the kernel drops what it has read there, which is free then


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_heavy(tmp_path_factory.mktemp("model") / "heavy.gguf")


def free(node: int) -> int:
    """Bytes of a node that nobody has."""
    return bytes_of(node, "MemFree")


def easily_had(node: int) -> int:
    """Bytes that are free or can be read again, as engines count them."""
    return bytes_of(node, r"MemFree|Active\(file\)|Inactive\(file\)|SReclaimable")


def bytes_of(node: int, names: str) -> int:
    found = re.findall(rf"(?:{names}): +(\d+) kB", Path(f"/sys/devices/system/node/node{node}/meminfo").read_text())
    assert found
    return sum(map(int, found)) << 10


@contextlib.contextmanager
def filled(node: int, left: int) -> Iterator[None]:
    """Another program holds memory of a node until about `left` bytes are free, less than the kernel usually keeps for
    itself.
    """
    if free(node) > 2 << 30:
        pytest.skip(f"node {node} has {free(node) >> 20} MiB free; filling it would take long")
    before = _KEPT.read_text()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    try:
        _KEPT.write_text(str(_LITTLE))
        with child() as other:
            for _ in range(_ROUNDS):
                if (more := easily_had(node) - left) < _NEARLY:
                    break
                # File pages make room little by little.
                size = max(min(more, (free(node) - left) // 2), MIB) // PAGE * PAGE
                assert other.tell("placed", size, node), f"node {node} could not be filled"
            assert more < _NEARLY, f"node {node} still has {more} bytes more that can be had"
            yield
    finally:
        _KEPT.write_text(before)


def fill_with_page_cache(node: int, left: int) -> None:
    """Read files on a CPU of the node until at most `left` bytes of it are free. The kernel keeps what it has read
    there, until it needs the room.
    """
    before, tries = os.sched_getaffinity(0), 4 * (free(node) // MIB)
    os.sched_setaffinity(0, NODES[node].cpus)
    try:
        for file in libraries():
            with contextlib.suppress(OSError), file.open("rb", buffering=0) as data:
                while free(node) > left and tries and data.read(MIB):
                    tries -= 1
            if free(node) <= left or not tries:
                break
    finally:
        os.sched_setaffinity(0, before)
    assert free(node) <= left, f"{free(node)} bytes of node {node} are free although much more was read there"


def libraries() -> list[Path]:
    """Files to read, of some hundred MiB in all; in one folder, as walking many takes long in a guest."""
    folders = [
        Path(folder) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib") if Path(folder).is_dir()
    ]
    return sorted(Path(entry.path) for entry in os.scandir(folders[0]) if ".so" in entry.name)


def engine(model: Path, **settings: object) -> tuple[list[int], PlacedMemory, list[str]]:
    """What an engine under shard says, where its memory lies, and what it has to tell."""
    with LLM(str(model), kv_cache_memory=KV, kv_cache_prealloc=True, numa="shard", **settings) as llm:
        (answer,) = llm.generate([list(PROMPTS[0])], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
        return list(answer.token_ids), placed_memory(os.getpid()), list(llm.ready.details["notes"])


def test_page_cache_makes_room_for_weights(model: Path) -> None:
    """Asked for a new page the kernel would rather give one of another node."""
    full = WHOLE[-1].id
    with filled(full, 48 * MIB):
        fill_with_page_cache(full, 8 * MIB)
        said, found, _ = engine(model, numa_strict=True)
    assert (said, found.remote) == (SAID[0][:3], 0)
    assert found.on(full) >= MATRIX_BYTES * 0.6 / len(WHOLE)


@pytest.fixture
def moved_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some weights of the last node are sent to the first one when all are loaded and nobody has looked yet."""
    settle = numa.settle_pages

    def after_moving(backend: NativeBackend, binding: EngineBinding, host: Host) -> tuple[Finding, ...]:
        parts = [part for part in backend.planned()["weights"] if part.nodes == (WHOLE[-1].id,)]
        move(os.getpid(), (max(parts, key=lambda part: part.size).address, AWAY), WHOLE[0].id)
        return settle(backend, binding, host)

    monkeypatch.setattr(inline_workers, "settle_pages", after_moving)


@pytest.mark.usefixtures("moved_while_loading")
def test_pages_that_lie_elsewhere_are_brought_home(model: Path) -> None:
    said, found, _ = engine(model, numa_strict=True)
    assert (said, found.remote) == (SAID[0][:3], 0)


@pytest.mark.usefixtures("moved_while_loading")
def test_pages_that_stay_elsewhere_are_told_and_strictly_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where home has no room for them."""
    monkeypatch.setattr(numa, "bring_home", lambda *_: None)
    told = rf"of \S+ of weights planned for NUMA node {WHOLE[-1].id}, \S+ lie elsewhere"
    with pytest.raises(HostError, match=f"--numa-strict: {told}"):
        engine(model, numa_strict=True)
    said, found, notes = engine(model)
    assert said == SAID[0][:3] and found.remote >= AWAY
    assert any(re.search(told, note) for note in notes), notes


def test_a_full_node_is_named_with_what_was_wanted_and_what_is_free(model: Path) -> None:
    full = WHOLE[-1].id
    with filled(full, MATRIX_BYTES // 4):
        check_refusal(
            " ".join(homenode("serve", model, "--numa", "mirror", "--check-config", *MUCH).err.split()), "mirror", full
        )
        done = start("serve", model, "--port", 0, "--numa", "replicate", *MUCH)
        assert done.code == 2
        check_refusal(" ".join(done.err.split()), "replicate", full)
        wait_until(lambda: not engines_anywhere(), "the engine of another node was left behind")


def engines_anywhere() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            found += [file.parent.name] if b"homenode.engine" in file.read_bytes() else []
    return found


def check_refusal(told: str, policy: str, full: int) -> None:
    """Weights, or KV memory where what the kernel can drop of the page cache leaves room for weights just so: node,
    wanted and free.
    """
    if "left beside its weights" in told:
        assert re.search(rf"--kv-cache-memory 64MiB is more than .*NUMA node {full} has \S+ left", told), told
        return
    assert re.search(rf"memory of NUMA node {full} under --numa {policy}", told), told
    assert re.search(rf"free: \S+ on node {full}; wanted: \S+ on node {full}", told), told
    assert "--numa local" in told, told  # what would fit


def test_kv_memory_that_one_node_does_not_have_is_refused_before_it_spills_over(model: Path) -> None:
    full, kv = WHOLE[-1].id, 64 * len(WHOLE) << 20
    flags = ("serve", model, "--numa", "shard", "--check-config", "--max-num-batched-tokens", 64, "--kv-cache-memory")
    with filled(full, MATRIX_BYTES // len(WHOLE) + (48 << 20)):
        done = homenode(*flags, kv)
        told = " ".join(done.err.split())
        assert done.code == 2 and re.search(
            rf"NUMA node {full} has \S+ left beside its weights, for \d+% of the KV memory", told
        ), told
        assert homenode(*flags, KV).code == 0
