"""Tokenizer files on which the library panics, aborts, hangs or asks for all memory are refused by name, and this
process goes on.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.hub.locate import builtin_model
from homenode.model.tokenizer import load_tokenizer, trial_run
from homenode.model.tokenizer.loader import begin_trial, load_untried
from tests.checkpoints import ARRAY, STRING, gguf_bytes
from tests.tokenizer_files import HOSTILE, folder_of, model, tokenizer_json, with_changes
from tests.waiting import wait_until

TEXT = "hello é Z 中 the end"


@pytest.fixture(autouse=True)
def nothing_was_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_run, "_USABLE", set())
    monkeypatch.setattr(trial_run, "_HEADERS", set())


def test_a_sound_file_is_loaded_and_knows_its_texts(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder_of(tmp_path, json.dumps(tokenizer_json())))
    ids = tokenizer.encode(TEXT)
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer.decode(ids) == TEXT.replace(" ", "▁")


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_by_name(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "_CPU_S", 1.0)
    monkeypatch.setattr(trial_run, "_WAIT_S", 6.0)
    folder = folder_of(tmp_path, with_changes(changes))
    with pytest.raises(CheckpointError) as raised:
        load_tokenizer(folder)
    assert str(folder / "tokenizer.json") in raised.value.message
    assert not {"panicked", "RUST_BACKTRACE", "\n"} & {*raised.value.message.split(), *raised.value.message}


def test_a_trial_may_take_some_memory_and_processor_time_and_no_more(tmp_path: Path) -> None:
    begun = begin_trial(folder_of(tmp_path, json.dumps(tokenizer_json())))
    assert begun is not None
    limits = Path(f"/proc/{begun._process.pid}/limits")  # also there when it has ended, until it is waited for

    def soft(name: str) -> str:
        return next(line.removeprefix(name).split()[0] for line in limits.read_text().splitlines() if name in line)

    wait_until(lambda: soft("Max cpu time") != "unlimited")
    assert (soft("Max address space"), soft("Max core file size")) == (str(begun.memory_bytes), "0")
    assert begun.cpu_s < int(soft("Max cpu time")) < begun.cpu_s + 30  # of which starting takes some
    begun.wait()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The models whose vocabulary is tried from now on."""
    found: list[Path] = []
    start = trial_run.TokenizerTrial.__init__
    monkeypatch.setattr(
        trial_run.TokenizerTrial, "__init__", lambda self, path, file: (found.append(path), start(self, path, file))[1]
    )
    return found


def test_the_same_content_is_tried_once_wherever_it_is(tmp_path: Path, begun: list[Path]) -> None:
    text = json.dumps(tokenizer_json())
    first, second = folder_of(tmp_path / "first", text), folder_of(tmp_path / "second", text)
    for folder in (first, first, second):
        load_tokenizer(folder)
    assert begun == [first]
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (second / name).write_text('{"pad_token": "e"}')
        load_tokenizer(second)
        assert begun.pop() == second
    bad = folder_of(tmp_path / "bad", next(iter(with_changes(change) for change in HOSTILE.values())))
    for _ in range(2):
        with pytest.raises(CheckpointError):
            load_tokenizer(bad)
    assert begun == [first, bad, bad]


def test_a_hang_is_refused_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_run, "_WAIT_S", 0.0)  # less than any trial takes
    blank = "".join(secrets.choice(" \t\n") for _ in range(32))  # what was found usable is not tried again
    new = json.dumps(tokenizer_json()) + blank
    with pytest.raises(CheckpointError, match="did not come to an end within"):
        load_tokenizer(folder_of(tmp_path, new))


def gguf_file(path: Path, token: str, tensor_bytes: int) -> Path:
    """A GGUF file with a vocabulary, and so many bytes of tensors behind it, of which most are a hole."""
    long = "more than is read at a time, " * 40_000
    vocabulary = [("tokenizer.ggml.tokens", ARRAY, (STRING, [*"the", token])), ("tokenizer.ggml.model", STRING, "gpt2")]
    merges = ("tokenizer.ggml.merges", ARRAY, (STRING, [" ".join(token)]))
    path.write_bytes(gguf_bytes([("general.description", STRING, long), *vocabulary, merges]))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + tensor_bytes)
    return path


def test_a_gguf_file_is_known_by_its_header_however_large_it_is(tmp_path: Path) -> None:
    first, larger = gguf_file(tmp_path / "a.gguf", "he", 80 << 20), gguf_file(tmp_path / "b.gguf", "he", 300 << 20)
    other = gguf_file(tmp_path / "c.gguf", "th", 80 << 20)
    assert [is_tried(file) for file in (first, first, larger, other, larger, other)] == [1, 0, 0, 1, 0, 0]
    with first.open("r+b") as opened:
        opened.seek(1 << 20)  # behind what is read at first
        opened.write(b"MORE")
    assert is_tried(first) and not is_tried(larger)


def is_tried(file: Path) -> bool:
    """Return whether the file had to be tried, which is done now."""
    trial = begin_trial(file)
    if trial is not None:
        trial.wait()
    return trial is not None


@pytest.mark.parametrize("length", [None, True, -1, 0, 1 << 40, "24", 1.5])
def test_a_length_that_cannot_be_is_not_remembered(length: object, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "a.gguf", "he", 0)
    trial_run._remember_header(file, length)
    assert not trial_run._USABLE and not trial_run.is_usable(file, file)


@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_dropout_is_not_used(dropout: float, tmp_path: Path) -> None:
    usual = load_untried(folder_of(tmp_path / "usual", json.dumps(tokenizer_json())))
    random = load_tokenizer(folder_of(tmp_path / "random", with_changes(model(dropout=dropout))))
    assert {tuple(random.encode("the then hethe")) for _ in range(10)} == {tuple(usual.encode("the then hethe"))}


@pytest.mark.parametrize(
    "name",
    ["an unknown token that is missing", "a special token without an id", "a second text where there is one"],
)
def test_what_the_library_raises_for_a_text_has_a_name(name: str, tmp_path: Path) -> None:
    """Also a panic, which is no Exception. A trial would have refused these files."""
    folder = folder_of(tmp_path, with_changes(HOSTILE[name]))
    with pytest.raises(CheckpointError, match="fails on this text"):
        load_untried(folder).encode(TEXT)


def test_what_the_library_raises_for_tokens_has_a_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, with_changes(HOSTILE["a decoder that strips too much"]))
    with pytest.raises(CheckpointError, match="fails on these tokens"):
        tokenizer = load_untried(folder)
        tokenizer.decode(tokenizer.encode("a", add_special_tokens=False))


def test_the_kind_of_an_error_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(UnsupportedError, match=r"tokenizer\.model"):
        load_tokenizer(tmp_path)


def test_what_homenode_brings_needs_no_trial() -> None:
    assert begin_trial(builtin_model()) is None


def test_what_homenode_brings_would_pass(tmp_path: Path) -> None:
    text = (builtin_model() / "tokenizer.json").read_text()
    assert load_tokenizer(folder_of(tmp_path, text)).encode("Once") == load_untried(builtin_model()).encode("Once")
