"""Fetching from a hub on loopback: what is refused before weights are fetched, and what a broken connection does."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.errors import CapacityError, UnsupportedError
from homenode.model.hub.candidate import Candidate
from homenode.model.hub.failures import explain_failure
from homenode.model.hub.progress import bytes_there, progress_line
from homenode.model.hub.refusals import disk_problem, free_disk, no_disk, refuse_gguf_architecture
from homenode.model.hub.repository import HubFile, HubRepository
from homenode.units import format_bytes
from tests.checkpoints import gguf_bytes, make_folder, make_gguf
from tests.fake_hub import FakeFile, FakeHub, serving
from tests.mistral_folders import write_both

pytest.importorskip("huggingface_hub")

_LOCATE = """
import json
import sys
from functools import partial
from homenode.engine.config import EngineConfig
from homenode.engine.model_path.locate import choose
from homenode.errors import UserError
from homenode.host.topology.allowance import Allowance
from homenode.model.hub.locate import locate

class Machine:
    memory_available = 0

Allowance.of_process = lambda source: Machine()
def announce(taken, why):
    print("taking", taken.file, "of figures" if taken.spec else "", why, file=sys.stderr)
choice = partial(choose, EngineConfig(), announce)
for name, Machine.memory_available in json.loads(sys.argv[1]):
    try:
        print(locate(name, progress=len(sys.argv) > 2, choice=choice))
    except UserError as error:
        print("refused:", error.message.replace("\\n", " "))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """Repositories of a small model, and of the same with one thing that is in the way."""
    made = {file.name: FakeFile(file.read_bytes()) for file in make_folder(tmp_path / "made").iterdir()}
    weights = {name for name in made if name.endswith(".safetensors")}
    small = {name: file for name, file in made.items() if name not in weights}
    foreign = {"architectures": ["FoonaForCausalLM"], "model_type": "foona"}
    large = {name: FakeFile(size=1 << 60) for name in weights}
    yield from _served(
        FakeHub(
            {
                "org/whole": made,
                "org/foreign": {**made, "config.json": FakeFile(json.dumps(foreign).encode())},
                "org/large": {**small, **large},
                "org/mistral": _mistral(tmp_path / "mistral"),
                "org/both": {**made, **_mistral(tmp_path / "both")},
                "org/foreign-gguf": {"m-Q8_0.gguf": FakeFile(size=1 << 20)},
                "org/gated": made,
                "org/ggufs": _ggufs(make_gguf(tmp_path / "made.gguf").read_bytes()),
                "org/foreign-ggufs": {
                    "m-Q8_0.gguf": FakeFile(gguf_bytes([("general.architecture", 8, "foona")], []), 8 << 20)
                },
            },
            gguf={"org/foreign-gguf": {"architecture": "foona"}},
            gated=frozenset({"org/gated"}),
        )
    )


def _mistral(folder: Path) -> dict[str, FakeFile]:
    """A model in Mistral's own form."""
    own, _ = write_both(folder, "mistral")
    (own / "tokenizer.model.v3").write_bytes(b"x")
    return {file.name: FakeFile(file.read_bytes()) for file in own.iterdir()}


def _ggufs(content: bytes) -> dict[str, FakeFile]:
    """Three quantisations of a model, one of which no disk has room for, one in two parts, and a part that sees
    pictures.
    """
    whole = {
        "m-Q4_0.gguf": FakeFile(content),
        "m-BF16.gguf": FakeFile(content, 1 << 60),
        "mmproj-F16.gguf": FakeFile(content, 9 << 20),
    }
    return whole | {f"m-Q8_0-0000{part}-of-00002.gguf": FakeFile(content + bytes(1 << 20)) for part in (1, 2)}


def _served(hub: FakeHub) -> Iterator[FakeHub]:
    with serving(hub):
        yield hub


def located(hub: FakeHub, name: str, home: Path, memory: int = 1 << 40) -> str:
    """What `locate` comes to in a process of its own: the library reads its variables once."""
    return ran(hub, [(name, memory)], home).stdout.strip()


def ran(hub: FakeHub, names: list[tuple[str, int]], home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The process. `names`: each with the memory that the machine has then."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    env = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", _LOCATE, json.dumps(names), *more]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_a_whole_model_comes(hub: FakeHub, tmp_path: Path) -> None:
    folder = Path(located(hub, "org/whole", tmp_path / "home"))
    files = hub.repositories["org/whole"]
    fetched = {name for name in files if (folder / name).exists()}
    assert "config.json" in fetched and any(name.endswith(".safetensors") for name in fetched)
    assert all((folder / name).read_bytes() == files[name].data for name in fetched)
    sent = hub.weights_sent
    assert located(hub, "org/whole", tmp_path / "home", memory=1) == str(folder)  # what is here is not judged again
    assert hub.weights_sent == sent


def test_the_form_of_mistral_comes_where_there_is_no_other(hub: FakeHub, tmp_path: Path) -> None:
    folder = Path(located(hub, "org/mistral", tmp_path / "home"))
    fetched = {"params.json", "consolidated.safetensors", "tokenizer.model.v3"}
    assert {file.name for file in folder.iterdir()} == fetched
    assert located(hub, "org/mistral", tmp_path / "home", memory=1) == str(folder)
    both = {file.name for file in Path(located(hub, "org/both", tmp_path / "home")).iterdir()}
    assert {"config.json", "model.safetensors", "params.json"} <= both and "consolidated.safetensors" not in both
    assert "not enough memory" in located(hub, "org/mistral", tmp_path / "other", memory=1000)


# A name, the memory of the machine, and what is said.
REFUSED: list[tuple[str, int, tuple[str, ...]]] = [
    ("org/foreign", 1 << 40, ("org/foreign", "'FoonaForCausalLM'", "'foona'", "not supported")),
    ("org/foreign-gguf:Q8_0", 1 << 40, ("org/foreign-gguf", "'foona'", "not supported")),
    ("org/large", 1 << 62, ("org/large", "not enough disk space", "free in")),
    ("org/ggufs", 1000, ("org/ggufs", "smallest of 3", "m-Q4_0.gguf", "not enough memory")),
    ("org/ggufs:Q4_0", 1000, ("org/ggufs", "not enough memory", "1000B are available")),
    (
        "org/ggufs:Q5_0",
        1 << 40,
        ("none of its GGUF files is a Q5_0", "it has m-BF16.gguf, m-Q4_0.gguf, m-Q8_0-00001-of-00002.gguf"),
    ),
    ("org/ggufs:BF16", 1 << 62, ("org/ggufs", "not enough disk space")),
    ("org/whole", 1000, ("org/whole", "not enough memory", "1000B are available")),
    ("org/gated", 1 << 40, ("org/gated", "accept its terms", "HF_TOKEN")),
]


@pytest.mark.parametrize("ggufs", [False, True])
def test_refusals_come_before_weights(ggufs: bool, hub: FakeHub, tmp_path: Path) -> None:
    """All of a kind in one process, which takes longer to start than to refuse."""
    asked = [row for row in REFUSED if ("ggufs" in row[0]) == ggufs]
    lines = ran(hub, [(name, memory) for name, memory, _ in asked], tmp_path / "home").stdout.splitlines()
    for (name, _, words), said in zip(asked, lines, strict=True):
        assert said.startswith("refused:") and all(word in said for word in words), (name, said)
    assert hub.weights_sent <= (len(asked) << 20 if ggufs else 0)  # the beginning of a GGUF file tells its figures


def test_a_gguf_architecture_that_only_the_file_tells(hub: FakeHub, tmp_path: Path) -> None:
    said = located(hub, "org/foreign-ggufs:Q8_0", tmp_path / "home")
    assert said.startswith("refused:") and "'foona' is not supported" in said
    assert hub.weights_sent <= 1 << 20


def test_the_largest_gguf_file_that_fits_is_taken(hub: FakeHub, tmp_path: Path) -> None:
    done = ran(hub, [("org/ggufs", 1 << 40)], tmp_path / "home")
    assert done.stdout.strip().endswith("/m-Q8_0-00001-of-00002.gguf")
    assert "taking m-Q8_0-00001-of-00002.gguf of figures" in done.stderr
    words = (
        "the largest that fits",
        "m-Q4_0.gguf",
        "smaller",
        "m-BF16.gguf (1048576TiB, does not fit: not enough disk space",
    )
    assert all(word in done.stderr for word in words) and "mmproj" not in done.stderr, done.stderr
    sent = hub.weights_sent
    # What the cache holds stays, whatever the memory has room for now.
    again = ran(hub, [("org/ggufs", 1)], tmp_path / "home")
    assert again.stdout == done.stdout and again.stderr == "" and hub.weights_sent == sent


def test_progress_is_told_without_a_terminal(hub: FakeHub, tmp_path: Path) -> None:
    done = ran(hub, [("org/whole", 1 << 40)], tmp_path / "home", "progress")
    total = next(file.size for name, file in hub.repositories["org/whole"].items() if name.endswith(".safetensors"))
    assert f"fetching org/whole: {format_bytes(total)} of {format_bytes(total)}" in done.stderr
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    assert (
        progress_line("org/name", 3 << 20, 10 << 20, 1 << 20, 4.0)
        == "fetching org/name: 3MiB of 10MiB, 512KiB/s, 14 s left"
    )
    assert "left" not in progress_line("org/name", 1 << 20, 10 << 20, 1 << 20, 4.0)


def test_bytes_of_a_fetch_are_counted_in_the_cache(tmp_path: Path) -> None:
    files = [HubFile("a", 100, "aa"), HubFile("b", 100, "bb"), HubFile("c", 100, "cc"), HubFile("d", 100)]
    (tmp_path / "aa").write_bytes(bytes(100))
    (tmp_path / "bb.12345678.incomplete").write_bytes(bytes(30))
    (tmp_path / "bb.incomplete").write_bytes(bytes(40))
    assert bytes_there(tmp_path, files) == 140


def test_a_broken_connection_is_gone_on_with(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks = 1
    folder = Path(located(hub, "org/whole", tmp_path / "home"))
    files = {name: file for name, file in hub.repositories["org/whole"].items() if name.endswith(".safetensors")}
    assert all((folder / name).read_bytes() == file.data for name, file in files.items())
    assert hub.breaks == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(number: int) -> None:
    error = explain_failure(OSError(number, os.strerror(number)), "org/name", None, False)
    assert isinstance(error, CapacityError) and "the disk of the cache is full" in error.message


def test_room_is_judged_by_what_is_missing(tmp_path: Path) -> None:
    files = (HubFile("a.safetensors", 100, "aa"), HubFile("b.safetensors", 200, "bb"), HubFile("c.bin", 400, "cc"))
    repository = HubRepository("org/name", "0" * 40, files)
    names = [file.name for file in repository.matching(["*.safetensors"])]
    assert repository.missing(tmp_path, names) == list(files[:2])
    blob = tmp_path / "models--org--name" / "blobs" / "aa"
    blob.parent.mkdir(parents=True)
    blob.touch()
    assert repository.missing(tmp_path, names) == list(files[1:2])
    free = free_disk(tmp_path / "not" / "made")
    assert free is not None and free > 0
    assert disk_problem([HubFile("x", 1)], tmp_path) == ""
    problem = disk_problem([HubFile("x", 1 << 62)], tmp_path)
    assert "not enough disk space" in problem
    assert "HF_HOME" in no_disk(Candidate("org/name", None, (), problem=problem)).message


def test_an_architecture_that_the_hub_names() -> None:
    for name, refused in (("foona", True), ("llama", False), (None, False), (7, False)):
        repository = HubRepository("org/name", "0" * 40, (), {"architecture": name})
        if refused:
            with pytest.raises(UnsupportedError, match="'foona' is not supported"):
                refuse_gguf_architecture(repository)
        else:
            refuse_gguf_architecture(repository)
