"""Chat templates that model files only name."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from homenode.errors import UserError
from homenode.model.hub.locate import builtin_model
from homenode.model.tokenizer.loader import load_tokenizer
from homenode.model.tokenizer.named_templates import with_named_templates

SAID = [{"role": "user", "content": "What is NUMA?"}]


def folder_with(path: Path, template: str) -> Path:
    """The built-in model's vocabulary beside a chat template."""
    shutil.copy(builtin_model() / "tokenizer.json", path)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path


@pytest.mark.parametrize("name", ["chatml", " ChatML\n"])
def test_the_text_of_a_known_name_is_taken(tmp_path: Path, name: str) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, name))
    shown = tokenizer.render_chat([{"role": "system", "content": "Be short."}, *SAID])
    assert shown == (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nWhat is NUMA?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.render_chat(SAID, add_generation_prompt=False).endswith("What is NUMA?<|im_end|>\n")
    tokenizer.close()


def test_an_unknown_name_is_told_and_is_no_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(folder_with(tmp_path, "llama-2"))
    assert "'llama-2'" in caplog.text and "--chat-template" in caplog.text
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.render_chat(SAID)
    tokenizer.close()


def test_templates_stay_as_they_are() -> None:
    templates = {"default": "{% for m in messages %}{{ m.content }}{% endfor %}", "tool_use": "{{ messages }}"}
    assert with_named_templates(templates) == templates
    assert with_named_templates({"default": "", "rag": "x" * 5000}) == {}
