"""Templates of the Ollama API: what they write, what is refused, and that hostile ones end soon."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.server.apis.ollama.go_rendering import GoTemplateError
from homenode.server.apis.ollama.go_template import GoTemplate

VALUES: dict[str, Any] = {
    "System": "S", "Prompt": "P", "Response": "", "Think": False,
    "Messages": [{"Role": "system", "Content": "S"}, {"Role": "user", "Content": "P"}],
}  # fmt: skip
CHATML = """{{ if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ .Response }}<|im_end|>
"""
MESSAGES = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<u>{{ .Content }}{{ if $last }}!{{ end }}
{{ else if and (eq .Role "system") (not $last) -}}
   [{{ .Content }}]
{{- else }}x{{ end }}
{{- end }}{{/* a word */}}a"""


def rendered(source: str) -> str:
    template = GoTemplate(source)
    return template.render(VALUES, ends_at_response="Messages" not in template.names)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("plain { text }", "plain { text }"),
        (CHATML, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nP<|im_end|>\n<|im_start|>assistant\n"),
        (MESSAGES, "[S]<u>P!\na"),
        ("{{ .Prompt }}{{ .Response }}{{ .System }}", "P"),
        ("{{ .Nothing }}|{{ with .Nothing }}a{{ else }}{{ .Prompt }}{{ end }}", "|P"),
        ("{{ with .Prompt }}{{ . }}{{ $.System }}{{ end }}", "PS"),
        ('{{ $n := "a" }}{{ if .Prompt }}{{ $n = "b" }}{{ $n := "c" }}{{ end }}{{ $n }}', "b"),
        ("{{ range .Messages }}{{ .Role }},{{ end }}", "system,user,"),
        ("{{ range $m := .Messages }}{{ $m.Content }}{{ else }}none{{ end }}", "SP"),
        ("{{ range .Nothing }}a{{ else }}none{{ end }}", "none"),
        ('{{ printf "%s-%q %d%%" "a" "b" 3 }}', 'a-"b" 3%'),
        ('{{ "a" | print "b" | printf "<%s>" }}', "<ba>"),
        ("{{ (index .Messages 1).Content }}{{ len .Messages }}{{ `a\\b` }}{{ true }}", "P2a\\btrue"),
        ("{{ or .Nothing .Prompt }}{{ and .Nothing (index .Nothing 3) }}", "P"),
        ('{{ json .Messages }}', '[{"Role": "system", "Content": "S"}, {"Role": "user", "Content": "P"}]'),
        ("a  {{- 1 -}}  b {{ 2 }} c", "a1b 2 c"),
        ('{{ if ne 1 2 }}{{ if lt 1 2 }}{{ if ge 2 2 }}y{{ end }}{{ end }}{{ end }}{{ eq 1 2 1 }}', "ytrue"),
    ],
)  # fmt: skip
def test_what_is_written(source: str, text: str) -> None:
    assert rendered(source) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{", "not closed"),
        ("{{ if .X }}", "no {{ end }}"),
        ("{{ end }}", "belongs to no block"),
        ('{{ define "x" }}', "`define` is not supported"),
        ("{{ shout .X }}", "`shout` is no function"),
        ("{{ .X | 3 }}", "no function behind"),
        ("{{ eq }}", "`eq` does not go"),
        ("{{ and }}", "no arguments"),
        ("{{ $x }}", "not declared"),
        ("{{ $x = 1 }}", "was not declared"),
        ("{{ $x, $y := 1 }}", "too many"),
        ("{{ range .Prompt }}{{ end }}", "no list"),
        ("{{ }}", "nothing between"),
        ("{{ .A } }", "cannot be read"),
        ('{{ lt 1 "a" }}', "`lt` does not go"),
        ("{{ .Prompt.Length }}", "has no fields"),
        ("{{ index .Messages 7 }}", "finds nothing"),
        ("{{ slice .Prompt 2 }}", "`slice`"),
        ("{{ if 1 }}" * 40, "deep"),
        ("{{" + "(" * 40, "deep"),
        ("{{ if 1 }}a" + "{{ else if 1 }}b" * 40, "deep"),
        ('{{ $y := "0123456789" }}' + "{{ $y = print $y $y }}" * 40, "too much"),
        ("{{ range $.Messages }}" * 20 + "{{ end }}" * 20, "too many steps"),
    ],
)
def test_what_is_refused(source: str, words: str) -> None:
    with pytest.raises(GoTemplateError, match=re.escape(words)):
        rendered(source)


_PIECES = [
    "{{", "{{-", "}}", " -}}", "if", "else", "end", "range", "with", " ", ".Messages", ".Prompt", "$", "$x", ":=", "=",
    ",",
    "eq", "index", "slice", "printf", '"%s"', "1", "-1", "(", ")", "|", "text", "/* */", "`", '"',
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map(" ".join))
def test_every_text_is_rendered_or_refused(source: str) -> None:
    try:
        rendered(source)
    except GoTemplateError:
        pass
