"""Each file call and each allocation fails in turn, while a model is loaded and while requests run: a named error,
nothing left behind, no wrong result.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.checkpoints import make_folder, make_gguf
from tests.examples import MANY
from tests.failing.attempt import Attempt, attempts, build

# All of them where everything is tried; else some, at even distances.
MOST = 10**6 if MANY else 8

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("homenode._native") is None, reason="needs the compiled core"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build(tmp_path_factory.mktemp("calls"))
    if isinstance(built, str):
        pytest.skip(built)
    return built


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with every small file that is read, and two files of weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = make_folder(tmp_path_factory.mktemp("failing") / "model", shards=2)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(128)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "t1", "eos_token": "t2"}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": "t0"}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "eos_token_id": [2, 3]}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    return folder


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tmp_path_factory.mktemp("failing_gguf") / "model.gguf", matrix_type="Q8_0")


def check(found: list[Attempt]) -> list[Attempt]:
    """What holds whatever fails; returns the attempts that ended with an error."""
    *failing, last = found
    assert (last.outcome, last.failed, last.left) == ("same", "", {}), last
    assert len(failing) >= min(MOST, 8)
    for each in failing:
        assert each.failed, each
        assert each.outcome in ("same", "named"), f"{each.failed}, call {each.number}: {each.words}"
        assert each.left == {}, each
    return [each for each in failing if each.outcome == "named"]


def test_a_file_call_that_fails_is_said_with_its_model_and_leaves_nothing(library: Path, folder: Path) -> None:
    errors = check(attempts(library, "load", "files", folder, MOST))
    assert errors
    for each in errors:
        assert str(folder) in each.words and "InternalError" not in each.words, each


def test_the_same_of_a_gguf_file(library: Path, gguf: Path) -> None:
    errors = check(attempts(library, "load", "files", gguf, MOST))
    assert errors
    for each in errors:
        assert str(gguf) in each.words and "InternalError" not in each.words, each


@pytest.mark.parametrize("task", ["pack", "unpack"])
def test_a_packed_cache_that_fails_does_not_keep_a_model_from_loading(library: Path, folder: Path, task: str) -> None:
    found = attempts(library, task, "files", folder, 2 * MOST)
    errors = check([without_what_could_not_be_removed(each) for each in found])
    for each in errors:
        assert each.failed not in ("write", "pwrite", "pwrite64", "fsync", "fdatasync", "rename", "unlink"), each


def without_what_could_not_be_removed(each: Attempt) -> Attempt:
    """Where all calls fail from one on, the removal of an unfinished file fails, too; the next load removes it."""
    kept = {key: value for key, value in each.left.items() if key != "files"}
    return each._replace(left=kept) if each.all_after and each.failed else each


@pytest.mark.parametrize("kind", ["core", "large"])
def test_memory_that_runs_out_while_a_model_is_loaded(library: Path, folder: Path, kind: str) -> None:
    errors = check(attempts(library, "load", kind, folder, MOST))
    assert errors
    for each in errors:
        assert each.words.startswith("HostError: ") or "step" in each.words, each


def test_memory_that_runs_out_in_the_core_ends_the_request_it_was_for(library: Path, folder: Path) -> None:
    """The child checks that the other request has its tokens, and the next attempt that the engine goes on."""
    errors = check(attempts(library, "request", "core", folder, MOST))
    assert errors
    for each in errors:
        assert "HostError: the step that computed this request failed" in each.words, each


def test_memory_that_runs_out_elsewhere_ends_the_request_it_was_for(library: Path, folder: Path) -> None:
    errors = check(attempts(library, "request", "large", folder, MOST))
    assert errors
    for each in errors:
        assert "the step that computed this request failed" in each.words, each
