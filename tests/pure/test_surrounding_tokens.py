"""BOS in a prompt: the whole table of file kind, flag, template and API. Never two in a conversation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from homenode.model.tokenizer import Tokenizer
from tests.paths import DATA, needs_data
from tests.tokenizer_files import load_here
from tests.vocabularies import CHATML, CONTROL, byte_level_metadata, sentencepiece_metadata, write_folder, write_gguf

SPECIAL = [("<|bos|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
BOS = 256


def template_of(writes_bos: bool) -> str:
    return ("{{ bos_token }}" if writes_bos else "") + CHATML


def post_processor(add_eos: bool = False) -> dict[str, Any]:
    tokens = {"<|bos|>": 256, "<|im_end|>": 258}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    around = [{"SpecialToken": {"id": name, "type_id": 0}} for name in tokens]
    return {
        "type": "TemplateProcessing",
        "single": [around[0], sequence, *(around[1:] if add_eos else [])],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in tokens.items()},
    }


def gguf(path: Path, flag: bool | None, writes_bos: bool, pre: str = "gpt-2") -> Tokenizer:
    keys = {"bos_token_id": BOS, "eos_token_id": 258, "chat_template": template_of(writes_bos), "pre": pre}
    return load_here(write_gguf(path / "v.gguf", byte_level_metadata(SPECIAL, add_bos_token=flag, **keys)))


def folder(path: Path, flag: bool, writes_bos: bool) -> Tokenizer:
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
    files = {"post_processor": post_processor()} if flag else {}
    return load_here(
        write_folder(path / "m", SPECIAL, tokenizer_config_json=config, chat_template_jinja=template_of(writes_bos),
            **files)
    )  # fmt: skip


def bos_in(tokenizer: Tokenizer, api: str) -> int:
    """How many BOS there are in the prompt, which are all at its beginning."""
    if api.startswith("text"):
        ids = tokenizer.encode("hi", add_special_tokens=api == "text")
    else:
        text = tokenizer.render_chat([{"role": "user", "content": "hi"}])
        ids = tokenizer.encode_chat(text, {"chat": None, "chat, false": False, "chat, true": True}[api])
    count = ids.count(BOS)
    assert ids[:count] == [BOS] * count
    return count


APIS = ("text", "text, false", "chat", "chat, false", "chat, true")
# (kind, the file adds BOS, the template writes it) -> how many there are, by API in the order above.
TABLE = {
    ("gguf", False, False): (0, 0, 0, 0, 0),
    ("gguf", False, True): (0, 0, 1, 1, 1),
    ("gguf", True, False): (1, 0, 1, 0, 1),
    ("gguf", True, True): (1, 0, 1, 1, 1),
    ("folder", False, False): (0, 0, 0, 0, 0),
    ("folder", False, True): (0, 0, 1, 1, 1),
    ("folder", True, False): (1, 0, 0, 0, 1),
    ("folder", True, True): (1, 0, 1, 1, 1),
}


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_how_many_begin_a_prompt(case: tuple[str, bool, bool], tmp_path: Path) -> None:
    kind, flag, writes = case
    tokenizer = gguf(tmp_path, flag, writes) if kind == "gguf" else folder(tmp_path, flag, writes)
    assert tuple(bos_in(tokenizer, api) for api in APIS) == TABLE[case]


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(itertools.product(("gguf", "folder"), (False, True), (False, True)))


@pytest.mark.parametrize(
    ("pre", "adds"),
    [
        ("llama-bpe", True),
        ("tekken", True),
        ("dbrx", False),
        ("glm4", False),
        ("hunyuan-dense", False),
        ("gpt-2", False),
    ],
)
def test_a_byte_level_file_without_the_flag_goes_by_its_pre_tokenizer(pre: str, adds: bool, tmp_path: Path) -> None:
    tokenizer = gguf(tmp_path, None, False, pre)
    assert [bos_in(tokenizer, api) for api in ("text", "chat")] == [adds, adds]


@pytest.mark.parametrize(("flag", "adds"), [(None, True), (True, True), (False, False)])
def test_a_sentencepiece_file_begins_with_bos_unless_it_says_otherwise(
    flag: bool | None, adds: bool, tmp_path: Path
) -> None:
    metadata = sentencepiece_metadata(add_bos_token=flag, add_space_prefix=False)
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", metadata))
    ids = [3 + ord("a")]
    assert tokenizer.encode("a") == tokenizer.encode_chat("a") == ([1, *ids] if adds else ids)


def test_the_end_is_added_to_a_conversation_only_when_asked_for(tmp_path: Path) -> None:
    tokenizer = load_here(write_folder(tmp_path / "m", SPECIAL, post_processor=post_processor(add_eos=True)))
    assert tokenizer.encode("a") == [256, 97, 258]
    assert tokenizer.encode_chat("a") == [97]
    assert tokenizer.encode_chat("a", True) == [256, 97, 258]
    assert tokenizer.encode_chat("<|bos|>a<|im_end|>", True) == [256, 97, 258]


PHI3_SPECIAL = [("<|user|>", CONTROL), ("<|end|>", CONTROL), ("<|assistant|>", 4), ("<|endoftext|>", CONTROL)]


@pytest.mark.parametrize(
    ("changes", "swallows"),
    [
        ({"architecture": "phi3"}, True),
        ({"name": "Phi-3 mini"}, True),
        ({"name": "phi3-medium"}, True),
        ({"name": "Phi 3.5 mini"}, True),
        ({"name": "something else"}, False),
    ],
)
def test_special_tokens_of_phi3_swallow_the_white_space_behind_them(
    changes: dict[str, str], swallows: bool, tmp_path: Path
) -> None:
    metadata = sentencepiece_metadata(PHI3_SPECIAL, words=("▁",), add_space_prefix=False, **changes)
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", metadata))
    user, end, assistant, text_end = (tokenizer.token_id(name) for name, _ in PHI3_SPECIAL)
    a, newline = 3 + ord("a"), 3 + ord("\n")
    between = [] if swallows else [newline]
    ids = tokenizer.encode("<|user|>\na<|end|>\n<|assistant|>\n<|endoftext|>\n", add_special_tokens=False)
    assert ids == [user, *between, a, end, *between, assistant, *between, text_end, newline]


@needs_data
def test_a_conversation_of_phi3_is_what_its_own_tokenizer_makes_of_it() -> None:
    tokenizer = load_here(DATA / "ggml-vocab" / "ggml-vocab-phi-3.gguf")
    text = tokenizer.render_chat([{"role": "user", "content": "Hello"}])
    assert tokenizer.encode_chat(text) == [1, 32010, 15043, 32007, 32001]


def test_special_tokens_of_a_byte_level_phi3_do_not(tmp_path: Path) -> None:
    metadata = byte_level_metadata([("<|user|>", CONTROL)], architecture="phi3", pre="dbrx")
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", metadata))
    assert tokenizer.encode("<|user|>\na") == [256, 10, 97]
