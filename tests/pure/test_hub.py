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
from homenode.model.hub.refusals import free_disk, refuse_gguf_architecture, refuse_without_disk, refuse_without_memory
from homenode.model.hub.repository import HubFile, HubRepository
from homenode.model.locate import _explained
from tests.checkpoints import make_folder
from tests.fake_hub import FakeFile, FakeHub, serving

pytest.importorskip("huggingface_hub")

_LOCATE = """
import sys
from homenode.errors import UserError
from homenode.model.locate import locate
try:
    print(locate(sys.argv[1], progress=False, memory=int(sys.argv[2])))
except UserError as error:
    print("refused:", error.message)
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
                "org/foreign-gguf": {"m-Q8_0.gguf": FakeFile(size=1 << 20)},
                "org/gated": made,
            },
            gguf={"org/foreign-gguf": {"architecture": "foona"}},
            gated=frozenset({"org/gated"}),
        )
    )


def _served(hub: FakeHub) -> Iterator[FakeHub]:
    with serving(hub):
        yield hub


def located(hub: FakeHub, name: str, home: Path, memory: int = 1 << 40) -> str:
    """What `locate` says in a process of its own: the library reads its variables once."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    env = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", _LOCATE, name, str(memory)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_whole_model_comes(hub: FakeHub, tmp_path: Path) -> None:
    folder = Path(located(hub, "org/whole", tmp_path / "home"))
    files = hub.repositories["org/whole"]
    fetched = {name for name in files if (folder / name).exists()}
    assert "config.json" in fetched and any(name.endswith(".safetensors") for name in fetched)
    assert all((folder / name).read_bytes() == files[name].data for name in fetched)
    sent = hub.weights_sent
    assert located(hub, "org/whole", tmp_path / "home", memory=1) == str(folder)  # what is here is not judged again
    assert hub.weights_sent == sent


@pytest.mark.parametrize(
    ("name", "memory", "words"),
    [
        ("org/foreign", 1 << 40, ("org/foreign", "'FoonaForCausalLM'", "'foona'", "not supported")),
        ("org/foreign-gguf:Q8_0", 1 << 40, ("org/foreign-gguf", "'foona'", "not supported")),
        ("org/large", 1 << 62, ("org/large", "not enough disk space", "free in")),
        ("org/whole", 1000, ("org/whole", "not enough memory", "1000B are available")),
        ("org/gated", 1 << 40, ("org/gated", "accept its terms", "HF_TOKEN")),
    ],
)
def test_refusals_come_before_weights(
    name: str, memory: int, words: tuple[str, ...], hub: FakeHub, tmp_path: Path
) -> None:
    said = located(hub, name, tmp_path / "home", memory)
    assert said.startswith("refused:") and all(word in said for word in words), said
    assert hub.weights_sent == 0


def test_a_broken_connection_is_gone_on_with(hub: FakeHub, tmp_path: Path) -> None:
    hub.breaks = 1
    folder = Path(located(hub, "org/whole", tmp_path / "home"))
    files = {name: file for name, file in hub.repositories["org/whole"].items() if name.endswith(".safetensors")}
    assert all((folder / name).read_bytes() == file.data for name, file in files.items())
    assert hub.breaks == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(number: int) -> None:
    error = _explained(OSError(number, os.strerror(number)), "org/name", None, False)
    assert isinstance(error, CapacityError) and "the disk of the cache is full" in error.message


def test_room_is_judged_by_what_is_missing(tmp_path: Path) -> None:
    files = (HubFile("a.safetensors", 100, "aa"), HubFile("b.safetensors", 200, "bb"), HubFile("c.bin", 400, "cc"))
    repository = HubRepository("org/name", "0" * 40, files)
    assert repository.missing(tmp_path, ["*.safetensors"], []) == files[:2]
    blob = tmp_path / "models--org--name" / "blobs" / "aa"
    blob.parent.mkdir(parents=True)
    blob.touch()
    assert repository.missing(tmp_path, ["*.safetensors"], []) == files[1:2]
    free = free_disk(tmp_path / "not" / "made")
    assert free is not None and free > 0
    refuse_without_disk("org/name", [HubFile("x", 1)], tmp_path)
    with pytest.raises(CapacityError, match="not enough disk space"):
        refuse_without_disk("org/name", [HubFile("x", 1 << 62)], tmp_path)
    refuse_without_memory("org/name", 10, 10)
    refuse_without_memory("org/name", 1 << 62, None)
    with pytest.raises(CapacityError, match="not enough memory"):
        refuse_without_memory("org/name", 11, 10)


def test_an_architecture_counts_for_gguf_files_only() -> None:
    repository = HubRepository("org/name", "0" * 40, (), {"architecture": "foona"})
    refuse_gguf_architecture(repository, [HubFile("m.safetensors", 1)])
    with pytest.raises(UnsupportedError, match="'foona' is not supported"):
        refuse_gguf_architecture(repository, [HubFile("m.gguf", 1)])
