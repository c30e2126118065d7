"""Special tokens that only tokenizer_config.json has are tokens all the same, with the ids it gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.errors import CheckpointError
from tests.tokenizer_files import load_here
from tests.vocabularies import CONTROL, write_folder

SPECIAL = [("<a>", CONTROL), ("<b>", CONTROL), ("<c>", CONTROL)]


def listed(ids: dict[str, int], **flags: bool) -> dict[str, Any]:
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return {"added_tokens_decoder": {str(i): {"content": name, **entry} for name, i in ids.items()}}


IDS = {"<a>": 256, "<b>": 257, "<c>": 258}


@pytest.mark.parametrize("in_vocabulary", [True, False], ids=["in the vocabulary", "beside it"])
@pytest.mark.parametrize("there", [[], ["<a>"], ["<b>"], ["<a>", "<c>"], ["<a>", "<b>", "<c>"]], ids=str)
def test_whatever_tokenizer_json_lacks(there: list[str], in_vocabulary: bool, tmp_path: Path) -> None:
    vocabulary = [name for name, _ in SPECIAL] if in_vocabulary else []
    folder = write_folder(
        tmp_path / "m", SPECIAL, added=there, vocabulary=vocabulary, tokenizer_config_json=listed(IDS)
    )
    tokenizer = load_here(folder)
    assert tokenizer.encode("x<a>y<b><c>z") == [120, 256, 121, 257, 258, 122]
    assert tokenizer.decode([120, 256, 121]) == "xy"


def test_ids_that_no_file_names_keep_their_places(tmp_path: Path) -> None:
    config = listed({"<a>": 257, "<c>": 300})
    tokenizer = load_here(write_folder(tmp_path / "m", added=[], tokenizer_config_json=config))
    assert tokenizer.encode("<a><b><c>") == [257, 60, 98, 62, 300]
    assert tokenizer.vocab_size == 301
    assert tokenizer.decode([97, 299, 98]) == "ab"


def test_a_token_of_the_vocabulary_keeps_the_id_that_it_has_there(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", added=[], vocabulary=["<a>"], tokenizer_config_json=listed({"<a>": 999}))
    assert load_here(folder).encode("<a>") == [256]


def test_flags_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = listed({"<a>": 256}, rstrip=True)
    tokenizer = load_here(write_folder(tmp_path / "m", SPECIAL[:1], tokenizer_config_json=config))
    assert tokenizer.encode("<a> \n b") == [256, 98]


def test_tokens_with_a_role_are_special_if_the_vocabulary_has_them(tmp_path: Path) -> None:
    config = {"eos_token": "<a>", "pad_token": {"content": "<b>"}, "additional_special_tokens": ["<c>", "<nowhere>"]}
    folder = write_folder(tmp_path / "m", SPECIAL, added=[], tokenizer_config_json=config)
    tokenizer = load_here(folder)
    assert tokenizer.encode("<a><b><c>") == [256, 257, 258]
    assert tokenizer.vocab_size == 259
    assert tokenizer.stop_token_ids == (256,)


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (["<a>"], "object of ids"),
        ({"x": {"content": "<a>"}}, "'x'"),
        ({"-1": {"content": "<a>"}}, "'-1'"),
        ({"99999999999": {"content": "<a>"}}, "ids go from 0"),
        ({"256": {"content": ""}}, "no token"),
        ({"256": {"content": "\ud800"}}, "no token"),
        ({"9" * 5000: {"content": "<a>"}}, "ids go from 0"),
        ({"256": 7}, "no token"),
        ({"900000": {"content": "<a>"}}, "may be left out"),
    ],
)
def test_what_cannot_be_is_named(decoder: Any, words: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", added=[], tokenizer_config_json={"added_tokens_decoder": decoder})
    with pytest.raises(CheckpointError, match=words):
        load_here(folder)
