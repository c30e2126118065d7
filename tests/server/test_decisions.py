"""Questions with fixed answers: what the engine is asked, and what both APIs make of its log-probabilities."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest

from homenode.engine.messages import Output
from homenode.engine.request import Request, TokenLogprob
from tests.server.conftest import Running, Start
from tests.server.fakes import ByteTokenizer, ScriptedClient

LOGPROB = {ord("A"): -1.0, ord("B"): -2.0, ord("C"): -3.0, ord("0"): -1.5, ord("1"): -1.0, ord("2"): -4.0}


class WordTokenizer(ByteTokenizer):
    """The same with tokens of their own for yes and no."""

    words: ClassVar = {"yes": 200, "no": 201}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        for word, token in self.words.items():
            if text.endswith(word):
                return [*super().encode(text.removesuffix(word), add_special_tokens), token]
        return super().encode(text, add_special_tokens)


def labels(request: Request) -> list[Output]:
    """The likeliest token is the first that is asked for; yes has -0.5, no -1.5, others what `LOGPROB` says."""
    known = {**LOGPROB, 200: -0.5, 201: -1.5}
    wanted = request.params.logprob_token_ids
    top = [(token, known[token]) for token in wanted]
    drawn = max(wanted, key=known.__getitem__)
    scored = [TokenLogprob(known[drawn], top)]
    return [Output(id=request.id, tokens=[drawn], logprobs=scored, finish_reason="length", cached_tokens=2)]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(ScriptedClient(labels), WordTokenizer())


def share(chosen: float, *others: float) -> float:
    return math.exp(chosen) / sum(map(math.exp, (chosen, *others)))


def test_each_kind_of_question_in_the_words_of_systemone(server: Running) -> None:
    questions = {
        "team": {"type": "choice", "instructions": "Who?", "criteria": {"billing": "money", "shipping": None}},
        "urgent": {"type": "noul", "criteria": {"true": "money moves"}},
        "tone": {"type": "score", "criteria": ["calm", "annoyed", "furious"]},
    }
    body = {"state": {"text": "Zwölf"}, "questions": questions, "instructions": "Be strict."}
    answer = server.post("/v1/systemone", {**body, "return_prompt_token_ids": True}).json()
    assert answer["object"] == "structured_decision" and list(answer["answers"]) == list(questions)
    team, urgent, tone = answer["answers"].values()
    assert team["choice"] == "billing" and team["probabilities"]["billing"] == pytest.approx(share(-1, -2))
    assert team["confidence"] == pytest.approx(math.exp(-1))
    assert urgent["noul"] == urgent["probabilities"]["yes"] == pytest.approx(share(-0.5, -1.5))
    levels = tone["probabilities"]
    assert tone["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"}
    assert tone["score"] == pytest.approx(levels["1"] + 2 * levels["2"])
    mass = answer["diagnostics"]["team"]["label_mass"]
    assert mass == pytest.approx(math.exp(-1) + math.exp(-2)) and answer["diagnostics"]["team"]["argmax_is_label"]
    assert answer["label_token_ids"]["urgent"] == [200, 201]
    prompt = bytes(answer["prompt_token_ids"]["team"]).decode()
    assert all(
        word in prompt for word in ("Be strict.", '{"text": "Zwölf"}', "Who?", "A. billing: money", "B. shipping")
    )
    assert answer["usage"]["output_tokens"] == 3


def test_each_kind_of_question_in_the_words_of_openai(server: Running) -> None:
    questions = [
        {"type": "predicate", "name": "twice", "instructions": "Charged twice?"},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": True}, {"value": "true"}]},
        {
            "type": "score",
            "instructions": "How?",
            "levels": [{"label": "low", "description": "little"}, {"label": "high"}],
        },
    ]
    parts = [{"type": "input_text", "text": "first"}, {"type": "input_text", "text": "second"}]
    body = {"input": [{"role": "user", "content": parts}, {"role": "user", "content": "third"}], "questions": questions}
    answer = server.post("/v1/decisions", body).json()
    twice, which, how = answer["answers"]
    assert twice["name"] == "twice" and twice["probability"] == pytest.approx(share(-0.5, -1.5))
    assert which["choice"] == "a" and [each["value"] for each in which["probabilities"]] == ["a", True, "true"]
    assert how["probabilities"][1]["label"] == "high" and how["score"] == pytest.approx(share(-1, -1.5))
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + 3 and usage["input_tokens_details"]["cached_tokens"] == 6


def test_all_questions_are_asked_together_and_each_for_its_own_labels(server: Running) -> None:
    before = len(server.client.requests)
    questions = {f"q{i}": {"type": "score", "criteria": ["x"] * (2 + i % 2)} for i in range(64)}
    assert server.post("/v1/systemone", {"state": "s", "questions": questions}).status_code == 200
    asked = server.client.requests[before:]
    assert [len(each.params.logprob_token_ids) for each in asked] == [2 + i % 2 for i in range(64)]
    assert all(each.params.temperature == 0 and each.params.max_tokens == 1 for each in asked)


def of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"questions": {"q": {"type": kind, **fields}}}


OPTIONS = dict.fromkeys(map(str, range(27)))
SAME = [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}] * 2}]
NOUL = {"q": {"type": "noul"}}
ASKED = [{"type": "predicate", "instructions": "x"}]
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("no question", "/v1/systemone", {"questions": {}}, "questions"),
    ("65 questions", "/v1/systemone", {"questions": {f"q{i}": {"type": "noul"} for i in range(65)}}, "64"),
    ("27 options", "/v1/systemone", of("choice", criteria=OPTIONS), "26"),
    ("one level", "/v1/systemone", of("score", criteria=["x"]), "criteria"),
    ("11 levels", "/v1/systemone", of("score", criteria=["x"] * 11), "10"),
    ("another type", "/v1/systemone", of("essay"), "essay"),
    ("a misspelt field", "/v1/systemone", {"stat": 1}, "stat"),
    ("a misspelt field of a question", "/v1/systemone", of("noul", criterion=1), "criterion"),
    ("thoughts", "/v1/systemone", {"chat_template_kwargs": {"enable_thinking": True}}, "thoughts"),
    ("effort", "/v1/systemone", {"chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ("equal choices", "/v1/decisions", {"questions": SAME}, "distinct"),
    ("an image", "/v1/decisions", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "image"),
    ("another role", "/v1/decisions", {"input": [{"role": "system", "content": "x"}]}, "system"),
    ("no message", "/v1/decisions", {"input": []}, "input"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "word"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_cannot_be_asked_is_refused_by_name(server: Running, path: str, body: dict[str, Any], word: str) -> None:
    whole = {"state": "s", "questions": NOUL} if path == "/v1/systemone" else {"input": "s", "questions": ASKED}
    answer = server.post(path, {**whole, **body})
    assert answer.status_code == 400 and word in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("tokenizer", "word"),
    [(ByteTokenizer(template=False), "chat template"), (ByteTokenizer(), "not one token")],
    ids=["no template", "no token for a label"],
)
def test_a_model_that_cannot_be_asked_says_so(start: Start, tokenizer: ByteTokenizer, word: str) -> None:
    answer = start(ScriptedClient(labels), tokenizer).post("/v1/systemone", {"state": "s", "questions": NOUL})
    assert answer.status_code == 400 and word in answer.json()["error"]["message"]
