"""Forms in which models write their thoughts, by name, and how thoughts are told from content."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.syntax.source import Reading, TextSource
from homenode.chat.syntax.writer import Writer

RAW = "none"  # thoughts stay in the content as the model wrote them


@dataclass(frozen=True)
class ThoughtForm:
    """`begin` and `end` enclose thoughts: anywhere in a message, or where not `anywhere` at its beginning only, because
    they are no tokens of their own and may stand in a text. `opened`: thoughts have begun unless the prompt shows the
    opposite. `answer_begins` and `answer_ends` may be around the answer and are left out. `tokens`: the special tokens
    that these texts are made of, where they are more than one each.
    """

    begin: str = ""
    end: str = ""
    anywhere: bool = False
    opened: bool = False
    answer_begins: tuple[str, ...] = ()
    answer_ends: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    @property
    def wrappers(self) -> tuple[str, ...]:
        """Return what may be around the answer."""
        return self.answer_begins + self.answer_ends

    @property
    def marks(self) -> tuple[str, ...]:
        """Its texts, or what they are made of, which may be special tokens of a model."""
        return self.tokens or tuple(text for text in (self.begin, self.end, *self.wrappers) if text)


_THINK = ThoughtForm("<think>", "</think>")
_THINK_OPENED = ThoughtForm("<think>", "</think>", opened=True)

FORMS: dict[str, ThoughtForm] = {
    RAW: ThoughtForm(),
    "think": _THINK,
    "qwen3": _THINK,
    "smollm3": _THINK,
    "glm45": _THINK,
    "kimi_k2": _THINK,
    "deepseek_v3": _THINK,
    "deepseek_r1": _THINK_OPENED,
    "minimax_m2": _THINK_OPENED,
    "granite_think": ThoughtForm("<think>", "</think>", answer_begins=("<response>",), answer_ends=("</response>",)),
    "granite": ThoughtForm("Here is my thought process:", "Here is my response:"),
    "mistral": ThoughtForm("[THINK]", "[/THINK]", anywhere=True),
    "gemma4": ThoughtForm("<|channel>thought", "<channel|>", anywhere=True),
    "seed_oss": ThoughtForm("<seed:think>", "</seed:think>"),
    "cohere_command3": ThoughtForm(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        anywhere=True,
        answer_begins=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        answer_ends=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    ),
    "kimi_k3": ThoughtForm(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        anywhere=True,
        answer_begins=("<|open|>response<|sep|>",),
        answer_ends=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    "solar_open": ThoughtForm(
        "<|think|>",
        "<|end|><|begin|>assistant",
        anywhere=True,
        answer_begins=("<|content|>",),
        answer_ends=("<|end|>",),
        tokens=("<|think|>", "<|begin|>", "<|content|>", "<|end|>"),
    ),
    "hy3": ThoughtForm("<think:opensource>", "</think:opensource>"),
    "apriel": ThoughtForm("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "minimax_m3": ThoughtForm("<mm:think>", "</mm:think>"),
    "apertus": ThoughtForm("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True),
    "openai": ThoughtForm(),  # the format of calls has channels, of which one is for thoughts
}


def is_open(form: ThoughtForm, prompt: str, begun: str = "") -> bool:
    """Return whether a text behind `prompt` begins inside thoughts. What other turns wrote does not matter, as their
    thoughts are closed. `begun`: the beginning of the answer, with which the prompt ends.
    """
    if not form.begin:
        return False
    if begun.strip():
        return begun_content(form, begun) is None
    opened, closed = prompt.rfind(form.begin), prompt.rfind(form.end)
    if opened > closed:
        return not prompt[opened + len(form.begin) :].strip()
    return form.opened and not (closed >= 0 and not prompt[closed + len(form.end) :].strip())


def begun_content(form: ThoughtForm, begun: str) -> str | None:
    """The content of an answer whose beginning is `begun`, which is not blank; None where that ends within thoughts.
    Thoughts are open where the beginning itself opens them: behind words of an answer a model has no other thoughts.
    """
    opened, closed = begun.rfind(form.begin), begun.rfind(form.end)
    if not form.begin:
        return begun
    if form.anywhere:
        return None if opened > closed else begun[closed + len(form.end) :] if closed >= 0 else begun
    if not form.opened and not begun.lstrip().startswith(form.begin):
        return begun
    thoughts, found, content = begun.partition(form.end)
    if found:
        return content
    return None if thoughts.lstrip().startswith(form.begin) else begun


class Thoughts:
    """The thoughts of one message."""

    def __init__(self, form: ThoughtForm, begins_open: bool, raw: bool = False, goes_on: bool = False) -> None:
        """`raw`: thoughts are written as content, markers included; calls within them are none even so. `goes_on`: the
        message has begun already, so that its text does not begin with a mark, or white space before one.
        """
        self._form, self._open, self.raw, self._goes_on = form, begins_open, raw, goes_on
        self.markers: tuple[str, ...] = (() if raw else form.wrappers) + ((form.begin,) if form.anywhere else ())

    def read_first(self, source: TextSource, writer: Writer) -> Reading[bool]:
        """Thoughts at the beginning of a message. False where there are none, with white space taken. The mark of their
        end alone says that there are none.
        """
        if not self._form.begin:
            return False
        source.forget()
        if self._goes_on:
            if self._open:
                yield from self._read(source, writer)
            return self._open
        yield from source.skip_space()
        if (yield from source.accept(self._form.begin)) or self._open:
            yield from self._read(source, writer)
            return True
        if self.raw or not (yield from source.accept(self._form.end)):
            return False
        writer.end_thoughts()
        return True

    def read_marked(self, source: TextSource, writer: Writer, marker: str) -> Reading[None]:
        """Return what follows one of `markers`, which was taken."""
        if marker == self._form.begin:
            yield from self._read(source, writer)

    def _read(self, source: TextSource, writer: Writer) -> Reading[None]:
        """Write thoughts to their end. What was written is not in the source's memory, from which whoever reads on may
        give text back.
        """
        write = writer.write_content if self.raw else writer.write_thoughts
        begin = source.taken()
        if self.raw:
            write(begin)
        plain = _not(self._form.end[0])
        while (yield from source.peek()):
            if source.take_run(plain):
                write(source.taken())
            elif (yield from source.accept(self._form.end)):
                end = source.taken()
                if self.raw:
                    write(end)
                else:
                    writer.end_thoughts()
                return
            else:
                source.take()
                write(source.taken())


@functools.lru_cache(maxsize=64)
def _not(first: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(first)}]+")
