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
from tests.tokenizer_files import HOSTILE, folder_of, model, tokenizer_json, with_changes
from tests.waiting import wait_until

TEXT = "hello é Z 中 the end"


@pytest.fixture(autouse=True)
def nothing_was_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_run, "_USABLE", set())


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
    limits = Path(f"/proc/{begun._process._process.pid}/limits")  # also there when it has ended, until it is waited for

    def soft(name: str) -> str:
        return next(line.removeprefix(name).split()[0] for line in limits.read_text().splitlines() if name in line)

    wait_until(lambda: soft("Max cpu time") != "unlimited")
    assert (soft("Max address space"), soft("Max core file size")) == (str(begun.memory_bytes), "0")
    assert begun.cpu_s < int(soft("Max cpu time")) < begun.cpu_s + 30  # of which starting takes some
    begun.wait()


def test_the_same_content_is_tried_once_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Path] = []
    start = trial_run.TokenizerTrial.__init__
    monkeypatch.setattr(
        trial_run.TokenizerTrial, "__init__", lambda self, path, file: (begun.append(path), start(self, path, file))[1]
    )
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
