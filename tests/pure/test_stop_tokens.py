"""Which tokens end an answer, for files as they are found: by number, by name, by the chat template, or by the
vocabulary alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homenode.cli.server.text_side import print_text_side
from homenode.engine.config import ModelConfig
from homenode.errors import CheckpointError
from homenode.model.formats.gguf_token_ids import token_id_of, token_ids_of
from homenode.model.tokenizer.config import TextConfig
from homenode.sampling import SamplingParams
from homenode.server.http.config import ServerConfig
from tests.checkpoints import make_folder, make_gguf
from tests.tokenizer_files import load_here
from tests.vocabularies import (
    CHATML,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    byte_level_metadata,
    sentencepiece_metadata,
    write_folder,
    write_gguf,
)

TEXT_END = ("<|endoftext|>", CONTROL)  # token 256
PHI3 = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endfor %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} </s>"
    "{% endif %}{% endfor %}"
)
# Special tokens from 256 on, keys and template -> the names that end an answer, those under keys not among them.
GGUF: dict[str, tuple[list[tuple[str, int]], dict[str, Any], set[str]]] = {
    "ChatML, control": ([TEXT_END, ("<|im_end|>", CONTROL)], {"eos_token_id": 256}, {"<|endoftext|>", "<|im_end|>"}),
    "ChatML, user-defined": ([TEXT_END, ("<|im_end|>", USER_DEFINED)], {}, {"<|endoftext|>", "<|im_end|>"}),
    "ChatML, normal": ([TEXT_END, ("<|im_end|>", NORMAL)], {}, {"<|endoftext|>", "<|im_end|>"}),
    "Llama 3": ([("<|eot_id|>", CONTROL), ("<|eom_id|>", CONTROL)], {"eos_token_id": 256},
        {"<|eot_id|>", "<|eom_id|>"}),
    "Gemma": ([("<eos>", CONTROL), ("<end_of_turn>", USER_DEFINED)], {"eos_token_id": 256}, {"<end_of_turn>"}),
    "Phi-3 without a template": ([TEXT_END, ("<|end|>", USER_DEFINED)], {"eos_token_id": 256},
        {"<|endoftext|>", "<|end|>"}),
    "Phi-3 with its template": ([TEXT_END, ("<|end|>", USER_DEFINED)], {"chat_template": PHI3},
        {"<|endoftext|>", "<|end|>"}),
    "an eot key, and <|end|> for something else": ([("<fin>", CONTROL), ("<|end|>", CONTROL)], {"eot_token_id": 256},
        set()),
    "a template, and <|end|> for something else": (
        [("<|im_end|>", CONTROL), ("<|end|>", CONTROL)], {"chat_template": CHATML}, {"<|im_end|>"},
    ),
    "messages that close, without a template": (
        [("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL)], {"eos_token_id": 256},
        {"<|return|>", "<|call|>"},
    ),
    "messages that close, with a template": (
        [("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL)], {"chat_template": HARMONY},
        {"<|return|>", "<|call|>"},
    ),
    "messages that close, the other pair": (
        [("<|flush|>", CONTROL), ("<|calls|>", CONTROL), ("<|end|>", CONTROL)], {"chat_template": PHI3},
        {"<|flush|>", "<|calls|>"},
    ),
    "a template's own name": ([("<fin>", CONTROL)], {"chat_template": CHATML.replace("<|im_end|>", "<fin>")},
        {"<fin>"}),
    "a template's own name, user-defined": ([("<fin>", USER_DEFINED)],
        {"chat_template": CHATML.replace("<|im_end|>", "<fin>")}, {"<fin>"}),
    "a template's own name, normal": ([("<fin>", NORMAL)], {"chat_template": CHATML.replace("<|im_end|>", "<fin>")},
        {"<fin>"}),
    "a template that ends a turn with plain text": ([TEXT_END],
        {"chat_template": "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"}, {"<|endoftext|>"}),
    "a template that refuses": ([TEXT_END], {"chat_template": "{{ raise_exception('no') }}"}, {"<|endoftext|>"}),
    "nothing": ([("<s>", CONTROL)], {}, set()),
    "an id outside the vocabulary": ([("<|im_end|>", CONTROL)], {"eos_token_id": 99999}, {"<|im_end|>"}),
    "the largest id there is": ([("<|im_end|>", CONTROL)], {"eos_token_id": 2**32 - 1, "eot_token_id": 2**32 - 1},
        {"<|im_end|>"}),
}  # fmt: skip


@pytest.mark.parametrize("case", GGUF)
def test_gguf_files(case: str, tmp_path: Path) -> None:
    special, keys, names = GGUF[case]
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", byte_level_metadata(special, **keys)))
    assert {tokenizer.token_text(token) for token in tokenizer.stop_token_ids} == names
    for name in names:  # one token in a prompt, and nothing in an answer's text
        ids = tokenizer.encode(f"a{name}b")
        assert ids == [97, tokenizer.token_id(name), 98]
        assert tokenizer.decode(ids) == "ab"


CHAT_END = [TEXT_END, ("<|im_end|>", CONTROL), ("<|end|>", CONTROL), ("</s>", CONTROL)]
FOLDERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "tokenizer_config.json": ({"tokenizer_config_json": {"eos_token": "<|im_end|>"}}, {"<|im_end|>"}),
    "an object": ({"tokenizer_config_json": {"eos_token": {"content": "<|im_end|>"}}}, {"<|im_end|>"}),
    "other roles": (
        {"tokenizer_config_json": {"eos_token": "</s>", "eot_token": "<|im_end|>"}}, {"</s>", "<|im_end|>"},
    ),
    "special_tokens_map.json": ({"special_tokens_map_json": {"eos_token": "<|im_end|>"}}, {"<|im_end|>"}),
    "both": (
        {"tokenizer_config_json": {"eos_token": "</s>"}, "special_tokens_map_json": {"eos_token": "<|im_end|>"}},
        {"</s>", "<|im_end|>"},
    ),
    "the template": ({"chat_template_jinja": CHATML}, {"<|im_end|>"}),
    "the template beside another eos": (
        {"chat_template_jinja": LLAMA2, "tokenizer_config_json": {"eos_token": "<|endoftext|>"}},
        {"<|endoftext|>", "</s>"},
    ),
    "names that nobody mentions": ({}, set()),
    "a name that is no text": ({"tokenizer_config_json": {"eos_token": "\ud800"}}, set()),
    "a template that writes what is no text": ({"chat_template_json": {"chat_template": CHATML.replace("im_end",
        "\ud800")}}, set()),
    "a name outside the vocabulary": ({"tokenizer_config_json": {"eos_token": "<|gone|>"}}, set()),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folders(case: str, tmp_path: Path) -> None:
    files, names = FOLDERS[case]
    tokenizer = load_here(write_folder(tmp_path / "m", CHAT_END, **files))
    assert {tokenizer.token_text(token) for token in tokenizer.stop_token_ids} == names


def test_a_template_given_by_the_user_tells_of_its_own_turns(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", CHAT_END, chat_template_jinja=CHATML)
    tokenizer = load_here(folder, chat_template=PHI3)
    assert [tokenizer.token_text(token) for token in tokenizer.stop_token_ids] == ["<|end|>"]


def shown(model: Path | None, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    print_text_side(ModelConfig(model=str(model) if model else None), TextConfig(), ServerConfig())
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_configuration_that_is_shown_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "m", eos_token_id=[7, 99999])
    write_folder(folder, CHAT_END, tokenizer_config_json={"eos_token": "<|im_end|>"})
    lines = shown(folder, capsys)[0].splitlines()
    assert lines[0] == "tokens that end an answer: \\x07 (7), <|im_end|> (257)"  # no bell rings
    assert lines[1:] == [
        "tool call parser: json, as there is no chat template",
        "reasoning parser: none, as the chat template shows no form of thoughts",
    ]
    assert shown(make_gguf(tmp_path / "m.gguf"), capsys)[0].startswith("tokens that end an answer: </s> (2)\n")
    assert "<|end|>" in shown(None, capsys)[0]


def test_a_model_that_is_not_there_has_a_note_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = shown(tmp_path / "nothing.gguf", capsys)
    assert out == "" and err.startswith("note: the tokens that end an answer are not known: model")


def test_missing_keys_of_sentencepiece_files() -> None:
    metadata = sentencepiece_metadata()
    assert [token_id_of(metadata, role, 260) for role in ("bos", "eos", "unknown", "eot")] == [1, 2, 0, None]
    assert token_id_of(metadata | {"tokenizer.ggml.eos_token_id": 9}, "eos", 260) == 9
    assert token_id_of(metadata | {"tokenizer.ggml.eos_token_id": 260}, "eos", 260) == 2
    assert token_id_of(byte_level_metadata(), "eos", 256) is None


def test_an_id_that_is_no_number_is_named() -> None:
    for value in ("2", 2.0, True, [1, None]):
        with pytest.raises(CheckpointError, match="eot_token_id"):
            token_ids_of({"tokenizer.ggml.eot_token_id": value}, "eot", 8)


def test_sampling_ends_by_them_unless_ends_are_ignored() -> None:
    params = SamplingParams(stop_token_ids=(5, 6))
    assert params.ended_by((6, 7)).stop_token_ids == (5, 6, 7)
    assert SamplingParams(stop_token_ids=(5,), ignore_eos=True).ended_by((6,)).stop_token_ids == (5,)
