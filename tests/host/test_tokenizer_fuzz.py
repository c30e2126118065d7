"""Tokenizer files and chat templates under fuzzing: whatever they are, there is a result or an error with a name, in
bounded time.

HOMENODE_FUZZ_EXAMPLES sets how many are tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer import load_tokenizer
from homenode.model.tokenizer.chat import ChatTemplate
from tests.tokenizer_files import HOSTILE, folder_of, tokenizer_json

EXAMPLES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "80"))
TELLING = [
    None,
    True,
    -1,
    0,
    2**31,
    2**32 - 1,
    2**63,
    1.5,
    "",
    "\0",
    "a" * 70000,
    [],
    [[]],
    {},
    {"type": "Sequence"},
    "\ud83d",
]
PARTS = [part for changes in HOSTILE.values() for part in changes.items()]
fuzz = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
fuzz_files = settings(fuzz, max_examples=max(8, EXAMPLES // 8))  # each takes a process


@st.composite
def mutated_files(draw: st.DrawFn) -> str:
    """A file with a part that the library is known to trip over, or a value somewhere that does not belong there, or
    both.
    """
    file: dict[str, Any] = tokenizer_json()
    for part, value in draw(st.lists(st.sampled_from(PARTS), max_size=1)):
        file[part] = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        place: Any = file
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 3)) == 0:
                break
            place = place[key]
        place[key] = draw(st.sampled_from(TELLING))
    return json.dumps(file)


@fuzz_files
@given(mutated_files())
def test_any_tokenizer_file_is_refused_or_works(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            tokenizer = load_tokenizer(folder_of(Path(folder), text))
        except UserError as error:
            assert "tokenizer" in error.message
            return
    ids = tokenizer.encode("hello é Z 中 <s> the")
    assert tokenizer.encode("hello é Z 中 <s> the") == ids
    assert isinstance(tokenizer.decode(ids), str)


PIECES = [
    "x", "{{ messages }}", "{% for a in messages %}", "{% for a in range(10 ** 6) %}", "{% endfor %}", "{% if a %}",
    "{% else %}", "{% endif %}", "{% macro m(n) %}", "{% endmacro %}", "{{ m(a) }}", "{% break %}",
    "{% continue %}", "{% set a = 'a' * 10 ** 9 %}", "{{ a | indent(10 ** 7) }}", "{{ 10 ** 9999 }}",
    "{% set ns = namespace(x='a') %}", "{% set ns.x = ns.x ~ ns.x %}", "{{ ns.x }}", "{% generation %}",
    "{% endgeneration %}", "{{ raise_exception(a) }}", "{{ messages | tojson(indent=a) }}", "{{ self.a() }}",
    "{% block a %}", "{% endblock %}", "{% include 'a' %}", "{% extends a %}", "{{ lipsum(a) }}",
    "{{ '%9999999d' % 1 }}", "{#", "#}", "{{ messages | map(attribute='x' * 99) | list }}", "{{ [a] * 10 ** 8 }}",
    "{% raw %}", "{{ strftime_now(a) }}", "\ud800", "\0",
]  # fmt: skip


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    made = TemplateRenderer(timeout_s=1.0)
    yield made
    made.close()


@fuzz
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40))
def test_any_template_is_refused_or_rendered(renderer: TemplateRenderer, source: str) -> None:
    with contextlib.suppress(UserError):
        text = ChatTemplate(source, {}, renderer).render([{"role": "user", "content": "hi"}], a=2)
        assert isinstance(text, str)
    assert ChatTemplate("{{ messages[0] }}", {}, renderer).render(["well"]) == "well"  # type: ignore[list-item]
