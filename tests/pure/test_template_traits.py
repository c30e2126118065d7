"""Templates get a message's content in a form that they show, whichever the client sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models

from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.tokenizer.template_traits import Form, TemplateTraits, read_traits
from tests.paths import DATA, needs_data
from tests.tokenizer_files import shared_renderer

STRING, PARTS, PART = (frozenset((form,)) for form in (Form.STRING, Form.PARTS, Form.PART))
BOTH = STRING | PARTS
PREFIX = "{% for m in messages %}<|{{ m.role }}|>"
SUFFIX = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES = {
    "string": (PREFIX + "{{ m.content }}" + SUFFIX, STRING),
    "string, trimmed": (PREFIX + "{{ m.content | trim }}" + SUFFIX, STRING),
    "string, as JSON": (PREFIX + "{{ m.content | tojson }}" + SUFFIX, STRING),
    "selected parts": (PREFIX + "{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}{{ c['text'] "
                                "}}{% endfor %}" + SUFFIX, PARTS),
    "the first part": (PREFIX + "{{ m.content[0]['text'] }}" + SUFFIX, PART),
    "parts by another name": (PREFIX + "{% set all = m.content %}{% for c in all if c.type == 'text' %}{{ c.text "
                                       "}}{% endfor %}" + SUFFIX, PARTS),
    "parts by a macro": (
        (
            "{% macro show(c) %}{% for p in c %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% "
            "endmacro %}"
        ) + PREFIX + "{{ show(m.content) }}" + SUFFIX,
        PARTS,
    ),
    "parts, or an error": (PREFIX + "{% if m.content is string %}{{ raise_exception('parts!') }}{% endif %}{{ "
                                    "m.content[0].text }}" + SUFFIX, PART),
    "both": (PREFIX + (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{{ c.text }}{% endfor %}{% "
        "endif %}"
    ) + SUFFIX, BOTH),
}  # fmt: skip


def render_by(source: str) -> tuple[Any, ChatTemplate]:
    template = ChatTemplate(source, {}, shared_renderer())
    return lambda messages, follows: template.render(messages, add_generation_prompt=follows), template


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_words_are_shown_whichever_form_the_client_sends(case: str) -> None:
    source, forms = TEMPLATES[case]
    render, template = render_by(source)
    traits = read_traits(render, ["<|end|>"], ())
    assert set(traits.forms.values()) == {forms}
    assert traits.turn_end == (None if "tojson" in source else "<|end|>")  # there a quotation mark comes first
    shown = set()
    for content in ("What is NUMA?", [{"type": "text", "text": "What is NUMA?"}]):
        messages = [
            {"role": role, "content": content} for role in ("system", "user", "assistant", "user", "a role of its own")
        ]
        text = template.render(traits.conform(messages))
        assert text.count("What is NUMA?") == 5
        assert "'type'" not in text
        shown.add(text)
    assert len(shown) == 1


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_tokenizer_gives_its_template_the_form_that_this_one_shows(case: str) -> None:
    """Each of its templates: that of conversations with tools may want another form."""
    library = Library(models.WordLevel({"a": 0}, unk_token="a"))
    sources = {"default": TEMPLATES[case][0], "tool_use": TEMPLATES["selected parts"][0]}
    tokenizer = Tokenizer(library, {}, sources)
    for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
        contents = ("What is NUMA?", [{"type": "text", "text": "What is NUMA?"}])
        shown = {
            tokenizer.render_chat([{"role": "user", "content": content}], tools=tools)  # type: ignore[dict-item]
            for content in contents
        }
        assert len(shown) == 1 and shown.pop().count("What is NUMA?") == 1
    tokenizer.close()


def test_each_role_may_want_a_form_of_its_own() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content[0].text }}{% else %}{{ m.content + '' "
        "}}{% endif %}"
        "</s>{% endfor %}"
    )
    render, template = render_by(source)
    traits = read_traits(render, ["</s>"], ())
    others = ("system", "developer", "assistant", "tool")
    assert traits.forms == {"user": PART, **dict.fromkeys(others, STRING)}
    said = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    assert template.render(traits.conform(said)) == "a</s>b</s>c</s>"


def test_several_parts_and_what_is_no_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    pictures = [{"type": "image"}, *parts]
    for forms, text, untouched in ((STRING, "a\nb", pictures), (PARTS, parts, pictures), (BOTH, parts, pictures)):
        traits = TemplateTraits({"user": forms})
        assert traits.conform([{"role": "user", "content": parts}])[0]["content"] == text
        assert traits.conform([{"role": "user", "content": pictures}])[0]["content"] == untouched
        assert traits.conform([{"role": "user"}, {"role": "user", "content": None}])[1]["content"] is None


TURN_ENDS = {
    "nothing": ("", None),
    "plain text": ("\n\nUser:", None),
    "behind white space": (" \n</s>\n", "</s>"),
    "the longest of two": ("<|end|><|end_more|>", "<|end|>"),
    "a name that begins like another": ("<|end|>x", "<|end|>"),
    "a token of the vocabulary that is not marked": ("[STOP]", "[STOP]"),
    "a tag that is no token": ("<answered>", None),
    "another message's end does not count": ("more <|end|>", None),
}


@pytest.mark.parametrize("case", TURN_ENDS)
def test_the_end_of_a_turn_is_what_directly_follows(case: str) -> None:
    written, wanted = TURN_ENDS[case]
    render, _ = render_by("{% for m in messages %}<|end|>{{ m.content }}{% endfor %}" + written)
    assert read_traits(render, ["<|end|>", "<|en", "</s>"], ["[STOP]"]).turn_end == wanted


def test_a_slow_template_is_not_tried_again() -> None:
    calls: list[int] = []
    times = iter(range(0, 1000, 2))

    def render(messages: Sequence[Mapping[str, Any]], follows: bool) -> str:
        calls.append(len(messages))
        return "nothing"

    traits = read_traits(render, [], (), clock=lambda: float(next(times)))
    assert (len(calls), traits.forms["user"], traits.turn_end) == (1, STRING, None)


WANTED = {
    "HuggingFaceTB-SmolLM3-3B": "<|im_end|>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "google-gemma-2-2b-it": "<end_of_turn>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|end_of_text|>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "mistralai-Mistral-Nemo-Instruct-2407": "</s>",
    "openai-gpt-oss-120b": "<|return|>",
}


@needs_data
@pytest.mark.parametrize("name", WANTED)
def test_templates_in_use(name: str) -> None:
    source = (DATA / "chat-templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, {"eos_token": "</s>"}, shared_renderer())
    traits = read_traits(
        lambda messages, follows: template.render(messages, add_generation_prompt=follows),
        [*WANTED.values(), "<|call|>"],
        (),
    )
    assert (traits.turn_end, traits.forms["user"]) == (WANTED[name], STRING)
