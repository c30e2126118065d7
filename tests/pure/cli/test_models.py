"""`homenode models`: the cache's table, removing, and what fits a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from homenode.cli.models.group import models
from homenode.model.hub.cache import cached_models
from tests.checkpoints import make_folder
from tests.mistral_folders import write_both

hub_constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = "shape:layers=2,hidden=64,heads=4,intermediate=128,vocab=256,format=BF16,tied=1"
LARGE = "shape:layers=126,hidden=16384,heads=128,kv_heads=8,intermediate=53248,vocab=128256,format=Q8_0,tied=0"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that runs, one of a foreign architecture, two GGUF files that hold nothing, and what a fetch that ended
    early leaves.
    """
    root = tmp_path / "hub"
    made = {file.name: file.read_bytes() for file in make_folder(tmp_path / "made").iterdir()}
    foreign = {**made, "config.json": json.dumps({"architectures": ["Foona"], "model_type": "foona"}).encode()}
    ggufs = {"a-Q4_0.gguf": b"", "b-00001-of-00002.gguf": b"1", "b-00002-of-00002.gguf": b"22", "mmproj-a.gguf": b""}
    mistral = {file.name: file.read_bytes() for file in write_both(tmp_path / "both", "mistral")[0].iterdir()}
    repositories = {"org/good": made, "org/foreign": foreign, "org/gguf": ggufs, "org/mistral": mistral}
    for name, files in repositories.items():
        snapshot = root / f"models--{name.replace('/', '--')}" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
        for file, content in files.items():
            (snapshot / file).write_bytes(content)
    (root / "models--org--partial" / "blobs").mkdir(parents=True)
    (root / "models--org--partial" / "blobs" / "x.incomplete").write_bytes(bytes(10))
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    return root


def ran(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(models, arguments, input=answer)


def test_every_model_of_the_cache_is_listed(cache: Path) -> None:
    found = {entry["name"]: entry for entry in json.loads(ran("--json").stdout)}
    assert set(found) == {
        "org/good",
        "org/mistral",
        "org/foreign",
        "org/gguf:a-Q4_0.gguf",
        "org/gguf:b-00001-of-00002.gguf",
        "org/partial",
    }
    good, foreign = found["org/good"], found["org/foreign"]
    for name in ("org/good", "org/mistral"):
        assert found[name]["supported"] and found[name]["fits"] and found[name]["format"] == "safetensors"
    assert good["tok_s"] > 0
    assert good["last_used"].startswith("2")
    assert foreign["supported"] is False and "foona" in foreign["reason"] and str(cache) not in foreign["reason"]
    assert found["org/gguf:b-00001-of-00002.gguf"]["size_bytes"] == 3
    assert found["org/partial"]["format"] == "incomplete" and found["org/partial"]["size_bytes"] == 10


def test_the_table_names_what_is_wrong(cache: Path) -> None:
    shown = ran().output
    assert all(name in shown for name in ("org/good", "org/foreign", "foona", "incomplete"))


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "nothing"))
    assert "no models in the Hub cache" in ran().output
    assert json.loads(ran("--json").stdout) == []


@pytest.mark.parametrize("answer", ["", "n\n", "\n", "maybe\n"])
def test_without_a_yes_all_stays(answer: str, cache: Path) -> None:
    result = ran("remove", "org/good", answer=answer)
    assert result.exit_code == 1 and "nothing was removed" in result.output
    assert (cache / "models--org--good").is_dir()


@pytest.mark.parametrize(("flags", "answer"), [(("--yes",), ""), ((), "y\n")])
@pytest.mark.parametrize("name", ["org/good", "org/partial"])
def test_one_repository_goes_and_no_other(name: str, flags: tuple[str, ...], answer: str, cache: Path) -> None:
    before = {model.repository for model in cached_models()}
    assert ran("remove", name, *flags, answer=answer).exit_code == 0
    assert {model.repository for model in cached_models()} == before - {name}


@pytest.mark.parametrize("name", ["org/nothing", "../hub", "org/gguf:a-Q4_0.gguf", "/"])
def test_names_that_the_cache_does_not_hold(name: str, cache: Path) -> None:
    before = cached_models()
    result = ran("remove", name, "--yes")
    assert result.exit_code == 2 and name in result.output
    assert cached_models() == before


def test_what_fits_a_machine(cache: Path) -> None:
    found = json.loads(ran("fit", SMALL, LARGE, "org/good", "--json").stdout)
    assert [entry["fits"] for entry in found] == [True, False, True]
    assert found[0]["tok_s"] > 0 and "weights take" in found[1]["reason"] and "memory" in found[1]["reason"]
    assert ran("fit", "shape:layers=0", "--json").exit_code == 2
    assert ran("fit", "org/nothing").exit_code == 2


def test_another_machine_gives_another_answer() -> None:
    middle = "shape:layers=32,hidden=4096,heads=32,kv_heads=8,intermediate=14336,vocab=128256,format=Q8_0,tied=0"
    found = [json.loads(ran("fit", middle, "--from", host, "--json").stdout)[0] for host in ("1s/1n/2c", "2s/2n/64c")]
    assert [entry["fits"] for entry in found] == [False, True]
    assert found[1]["tok_s"] > 0
    assert "--node-memory is ignored" in ran("fit", middle, "--from", "1s/1n/2c", "--node-memory", "64GiB").output
