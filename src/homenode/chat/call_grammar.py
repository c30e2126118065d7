"""The grammar of a whole message: thoughts, then calls, text with calls in it, or content that fits a grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.chat.choice import ChosenFormats
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, MessageParts
from homenode.chat.grammars.inputs import nested
from homenode.chat.grammars.lark import BLANK, LarkWriter, escape
from homenode.chat.grammars.parameters import CallableTool, parameters_of
from homenode.chat.grammars.thoughts import ThoughtsBegin, open_thoughts, thoughts_begin
from homenode.chat.offer import ToolOffer, ToolUse
from homenode.errors import UserError


def call_grammar(
    chosen: ChosenFormats,
    offer: ToolOffer | None = None,
    *,
    prompt: str = "",
    begun: str = "",
    thinking_budget: int | None = None,
    output: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> str | None:
    """A grammar in Lark for a message behind `prompt` such that `MessageParser` reads calls whose arguments fit their
    schemas, None where nothing needs to be bound.

    `begun`: the beginning of the answer, with which the prompt ends. `thinking_budget`: how many tokens thoughts have
    at most. `output`: a grammar in Lark for the content where nothing is called. `special_tokens`: ids by text of the
    tokens that text never makes, without those that end an answer; a mark of the format that is among them is that
    token. UserError where a format cannot write what is offered.
    """
    bound = offer if offer is not None and binds_calls(offer) else None
    if bound is None and output is None and thinking_budget is None:
        return None
    lark = LarkWriter(special_tokens or {})
    calls = None if bound is None else CallWriter(lark, _callable_tools(bound), parallel=bound.parallel)
    if chosen.tools.describe_message is not None:
        must_call = bound is not None and bound.must_call
        return lark.text(
            chosen.tools.describe_message(
                MessageParts(lark, calls, must_call, output and nested(output), thinking_budget)
            )
        )
    forms = None if calls is None else _describe(chosen, calls)
    message = _MessageWriter(lark, chosen, forms, bound, output, thinking_budget)
    return lark.text(message.start(thoughts_begin(chosen.thoughts, prompt, begun)))


def binds_calls(offer: ToolOffer) -> bool:
    """Return whether calls are bound: where one must come, or where the arguments of a tool must fit."""
    if offer.use is ToolUse.NONE and offer.named is None:
        return False
    strict = any(tool.get("function", tool).get("strict") for tool in offer.tools)
    return bool(offer.tools) and (offer.must_call or strict or bool(offer.inputs))


def _callable_tools(offer: ToolOffer) -> list[CallableTool]:
    functions = [tool.get("function", tool) for tool in offer.tools]
    if offer.named is not None:
        functions = [function for function in functions if function["name"] == offer.named]
    return [
        CallableTool(
            function["name"],
            parameters_of(function),
            bound=offer.must_call or bool(function.get("strict")),
            strict=bool(function.get("strict")),
            input=offer.inputs.get(function["name"]),
        )
        for function in functions
    ]


def _describe(chosen: ChosenFormats, calls: CallWriter) -> CallForms:
    if chosen.tools.describe_calls is None:
        text = f"calls in the format {chosen.tools.name} cannot be bound to schemas"
        raise UserError(text, param="tool_choice")
    return chosen.tools.describe_calls(calls)


class _MessageWriter:
    """Writes the rules of a message."""

    def __init__(
        self,
        lark: LarkWriter,
        chosen: ChosenFormats,
        calls: CallForms | None,
        offer: ToolOffer | None,
        output: str | None,
        budget: int | None,
    ) -> None:
        self._lark, self._form, self._calls, self._offer = lark, chosen.thoughts, calls, offer
        self._output, self._budget = output, budget

    def start(self, begin: ThoughtsBegin) -> str:
        """The body of the first rule, in which thoughts come first."""
        if begin is ThoughtsBegin.CLOSED:
            return self._answer()
        thoughts = open_thoughts(self._lark, self._form.end, self._budget)
        space = r"/\n{1,2}/?"
        if begin is ThoughtsBegin.OPEN:
            again = f"{self._lark.mark(self._form.begin)}?" if self._lark.is_token(self._form.begin) else ""
            return f"{again} {thoughts} {space} {self._answer()}"
        if self._budget == 0:
            return self._answer()
        return (
            rf"/\n{{1,2}}/? {self._lark.mark(self._form.begin)} {thoughts} {space} {self._answer()} | {self._answer()}"
        )

    def _answer(self) -> str:
        """A rule for what follows thoughts."""
        if self._calls is None:
            return self._text() if self._output is None else self._content()
        if self._must_call:
            return self._calls_only(self._calls)
        if self._output is None:
            return self._text_with_calls(self._calls)
        return self._lark.rule(f"{self._calls_only(self._calls)} | {self._content()}")

    @property
    def _must_call(self) -> bool:
        return self._offer is not None and self._offer.must_call

    @property
    def _parallel(self) -> bool:
        return self._offer is not None and self._offer.parallel

    def _content(self) -> str:
        """A rule for content that fits the grammar of the output."""
        content = nested(self._output or "")
        if self._form.wrappers:
            around = (self._form.answer_begins, self._form.answer_ends)
            begins, ends = (" | ".join(map(self._lark.mark, texts)) for texts in around)
            content = f"({begins})? {self._lark.rule(content)} ({ends})?"
        return self._lark.rule(content)

    def _text(self) -> str:
        """A rule for any text and tokens but further thoughts."""
        begin = [self._form.begin] if self._form.begin else []
        anywhere = begin if self._form.anywhere else []
        text = self._lark.without(map(escape, anywhere), at_begin=map(escape, begin))
        others = " | ".join(self._others(begin))
        return self._lark.rule(f"{text} (({others}) {text})*" if others else f"{text}")

    def _others(self, marks: Sequence[str]) -> list[str]:
        """Rule bodies for special tokens that may be within text, where those of `marks` may not: others, and what is
        around the answer.
        """
        others = self._lark.other_tokens(marks)
        around = [text for text in self._form.wrappers if self._lark.has_token(text) and not self._lark.is_token(text)]
        return [*([others] if others else ()), *map(self._lark.mark, around)]

    def _calls_only(self, calls: CallForms) -> str:
        """A rule for one call or, where that is allowed, several."""
        lark = self._lark
        one = lark.rule(" | ".join(f"{self._begin(begin)} {begin.rest}" for begin in calls.begins))
        several = self._parallel and calls.separator is not None
        return lark.rule(f"{one} ({calls.separator} {one})*") if several else one

    def _begin(self, begin: CallBegin) -> str:
        return self._lark.mark(begin.text) if begin.text else f"/{begin.pattern}/"

    def _text_with_calls(self, calls: CallForms) -> str:
        """A rule for text in which a call begins wherever it has a mark of one."""
        lark, form = self._lark, self._form
        thoughts = [form.begin] if form.begin else []
        tokens = [text for text in (*thoughts, *(begin.text for begin in calls.begins)) if lark.has_token(text)]
        excluded = [*tokens, *(thoughts if form.anywhere else ()), *calls.excluded]
        at_begin = [*map(escape, thoughts), *calls.excluded_on_new_line]
        if calls.excluded_on_new_line:
            text = lark.line_without(map(escape, excluded), at_begin)
            before = lark.rule(rf"({text} /\n/)*")
        else:
            text, before = lark.without(map(escape, excluded), at_begin), ""
        called = lark.rule(" | ".join(f"{before} {self._up_to(begin, text)} {begin.rest}" for begin in calls.begins))
        plain = []
        plain += [f"{before} {text} {others}" for others in self._others([*tokens, *calls.excluded])]
        if form.anywhere and self._budget is None:
            begun = self._up_to(CallBegin("", form.begin), text)
            plain.append(f"{before} {begun} {open_thoughts(lark, form.end, None)}")
        if self._parallel:
            return lark.rule(f"({' | '.join([called, *plain])})* {before} {text}")
        passed = f"({' | '.join(plain)})*" if plain else ""
        return lark.rule(f"{passed} ({called} | {before} {text})")

    def _up_to(self, begin: CallBegin, text: str) -> str:
        """A rule body for text, or for the last line of one, with the beginning of a call at its end."""
        if begin.text:
            return self._lark.up_to(text, begin.text)
        return self._lark.rule(f"/{BLANK}{begin.pattern}/", "lazy")
