"""Claude Code and Codex at work through chat templates of many kinds: every block of their requests is in the prompt.

The programs run as users run them, against this server; a script stands for the model and uses their tools, so that
calls and results are in the later requests. Skips where the programs are not installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from homenode.model.sandbox.renderer import TemplateRenderer
from tests.agents.programs import AGENTS, Agent
from tests.agents.scripted_work import DONE, SAID, next_call
from tests.agents.sent_blocks import lacking, sent_blocks
from tests.agents.served_template import Exchange, byte_tokenizer, served
from tests.agents.spelled_calls import spell_answer, spell_call
from tests.paths import DATA
from tests.pure.chat.template_kinds import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
OURS = (
    "system: the first part alone", "developer: what it gets", "tool: what it gets", "user: texts by a plus",
    "all: the first part alone", "all: parts only", "wants a user", "shows the system with the last question",
    "for tools only", "text or calls", "no calls", "one call, or an error", "no results", "no developers", "no systems",
    "systems in front", "in turns", "bare functions", "no tools", "arguments as pairs", "arguments by a plus",
)  # fmt: skip


def _templates() -> dict[str, str]:
    """Twenty of ours, and those of models in the data folder and in that of HOMENODE_TEMPLATES."""
    folders = [DATA / "chat-templates", *map(Path, filter(None, [os.environ.get("HOMENODE_TEMPLATES")]))]
    files = (file for folder in folders for file in sorted(folder.glob("*.jinja")))
    return {name: KINDS[name] for name in OURS} | {file.stem: file.read_text() for file in files}


TEMPLATES = _templates()
PROMPT_END = 60  # characters in which thoughts are begun
RESULT = "The third line of the notes is here."


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    made = TemplateRenderer()
    yield made
    made.close()


def test_there_are_twenty_templates() -> None:
    assert len(set(TEMPLATES.values())) >= 20


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_block_of_three_turns_is_in_the_prompt(
    agent: Agent, name: str, renderer: TemplateRenderer, tmp_path: Path
) -> None:
    if agent.find() is None:
        pytest.skip(f"{agent.name} is not installed here, nor in the environment of HOMENODE_AGENTS")
    template = TEMPLATES[name]
    tokenizer = byte_tokenizer(template, renderer)

    @cache
    def spelled(call: str, before: str) -> str:
        name, arguments = json.loads(call)
        return spell_call(tokenizer, (name, arguments), before) if name else spell_answer(tokenizer, DONE, before)

    def write(exchange: Exchange) -> str:
        before = (exchange.prompt or "")[-PROMPT_END:]
        return spelled(json.dumps(next_call(exchange.body) or ("", {})), before)

    with served(template, write, renderer) as server:
        answers = agent.work(server.url, tmp_path, SAID)
    assert all(DONE in answer for answer in answers), answers
    working = [each for each in server.seen if next_call(each.body) or RESULT in str(each.body)]
    assert len(working) >= 7, [each.path for each in server.seen]  # three turns with calls and results
    for exchange in working:
        assert exchange.status == 200 and _missing(exchange) == []


def _missing(exchange: Exchange) -> list[tuple[str, str]]:
    assert exchange.prompt is not None
    found = lacking(exchange.prompt, exchange.ignored, sent_blocks(exchange.body))
    return [(block.place, block.text[:80]) for block in found]
