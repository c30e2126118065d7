"""`homenode render` and `homenode parse`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.seats }} seats{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if think %}<think>\n{% endif %}{% endif %}"
)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    call = {"id": "a", "type": "function", "function": {"name": "book", "arguments": '{"seats": 2}'}}
    messages = [
        {"role": "user", "content": "é 🦊"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Done."},
    ]
    (tmp_path / "messages.json").write_text(json.dumps(messages))
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "text.txt").write_bytes(b'Hm.</think>\r\nOk\r\n<tool_call>{"name": "book", "arguments": {"seats": 2}}')
    (tmp_path / "broken.json").write_text("{")
    return tmp_path


def run(folder: Path, command: str, *words: str) -> Result:
    flags = [str(folder / word) if "." in word and not word.startswith("{") else word for word in words]
    return CliRunner().invoke(cli, [command, "--template", str(folder / "template.jinja"), *flags])


def test_render_prints_text_and_tokens_as_the_model_sees_them(files: Path) -> None:
    result = run(files, "render", "--messages", "messages.json", "--tools", "tools.json", "--json")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["prompt"].startswith('<tool_call>[{"type": "function"')
    assert shown["prompt"].endswith("[user]é 🦊[assistant]2 seats[tool]Done.[assistant]")
    assert shown["token_ids"] and all(isinstance(token, int) for token in shown["token_ids"])
    plain = run(files, "render", "--messages", "messages.json")
    assert "[user]é 🦊" in plain.stdout and " tokens: " in plain.stdout


def test_parse_goes_on_where_the_prompt_ends(files: Path) -> None:
    words = ("--text", "text.txt", "--tools", "tools.json", "--chat-template-kwargs", '{"think": true}')
    result = run(files, "parse", *words, "--reasoning-parser", "think")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert (shown["content"], shown["reasoning_content"]) == ("Ok", "Hm.")
    assert shown["tool_calls"][0]["function"] == {"name": "book", "arguments": '{"seats": 2}'}
    raw = json.loads(run(files, "parse", "--text", "text.txt").stdout)
    assert raw["content"] == (files / "text.txt").read_bytes().decode() and raw["tool_calls"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("render", "--messages", "broken.json"), "is no JSON"),
        (("render", "--messages", "tools.json"), "[0] is no message"),
        (("render", "--messages", "none.json"), "No such file"),
        (("render", "--messages", "messages.json", "--tools", "messages.json"), "[0] is no tool"),
        (("render", "--messages", "messages.json", "--chat-template-kwargs", '{"tools": 1}'), "may not set tools"),
        (("render", "--messages", "messages.json", "--chat-template-kwargs", "x"), "is no JSON"),
        (("parse", "--text", "none.txt"), "No such file"),
        (("parse", "--text", "text.txt", "--format", "x"), "there is no tool call parser 'x'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(files: Path, words: tuple[str, ...], told: str) -> None:
    result = run(files, *words)
    assert result.exit_code == 2
    assert told in result.stderr and len(result.stderr.splitlines()) == 1
