"""A conversation in the terminal, and the commands that steer it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

Messages = list[dict[str, str]]
_COMMAND = re.compile(r"/[a-z]*", re.IGNORECASE)
_OTHER_NAMES = {"/new": "/reset", "/clear": "/reset", "/quit": "/exit", "/bye": "/exit", "/?": "/help"}
_LIKE = 0.5  # how alike a word must be to be what was meant


@dataclass
class TerminalConversation:
    """`messages`: what the model is given, with the system message first, where there is one."""

    system: str = ""
    messages: Messages = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> Messages:
        """Add a question; all that the model is given."""
        self.messages.append({"role": "user", "content": text})
        return self.messages

    def take_back(self) -> None:
        """Forget the question that was not answered."""
        self.messages.pop()

    def answered(self, text: str) -> None:
        """Add the answer."""
        self.messages.append({"role": "assistant", "content": text})

    def obey(self, line: str) -> str | None:
        """Do what a command says and tell what was done. None for a line that is no command but something to ask.

        A command is a word behind a slash: a path, with further slashes, is none.
        """
        word, _, rest = line.partition(" ")
        word = word.lower()
        if word not in _OTHER_NAMES and not _COMMAND.fullmatch(word):
            return None
        command = _COMMANDS.get(_OTHER_NAMES.get(word, word))
        return _no_command(word) if command is None else command.obey(self, rest.strip())


@dataclass(frozen=True)
class _Command:
    usage: str
    help: str
    obey: Callable[[TerminalConversation, str], str]


def _help(conversation: TerminalConversation, rest: str) -> str:
    width = max(len(command.usage) for command in _COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in _COMMANDS.values()]
    return "\n".join((*lines, f"{'Ctrl-C':<{width}}  stop an answer", f"{'Ctrl-D':<{width}}  the same as /exit"))


def _reset(conversation: TerminalConversation, rest: str) -> str:
    conversation.begin_anew()
    return "a new conversation begins" + (", with the system message" if conversation.system else "")


def _system(conversation: TerminalConversation, rest: str) -> str:
    conversation.system = rest
    conversation.begin_anew()
    return f"{'the system message is set' if rest else 'there is no system message'}; a new conversation begins"


def _exit(conversation: TerminalConversation, rest: str) -> str:
    conversation.is_over = True
    return ""


_COMMANDS = {
    "/help": _Command("/help", "these lines", _help),
    "/reset": _Command("/reset", "begin a new conversation", _reset),
    "/system": _Command("/system TEXT", "begin one with this system message; without TEXT with none", _system),
    "/exit": _Command("/exit", "end", _exit),
}


def _no_command(word: str) -> str:
    known = [*_COMMANDS, *_OTHER_NAMES]
    near = difflib.get_close_matches(word, known, 1, _LIKE)
    advice = f"did you mean {_OTHER_NAMES.get(near[0], near[0])}? " if near else ""
    return f"there is no command {word}; {advice}/help lists those there are"
