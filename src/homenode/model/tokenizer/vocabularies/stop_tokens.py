"""The tokens that end an answer: the union of what a model's files say.

The files say it in several places, and many name the end of a text in one and the end of a turn in another: numbers in
generation_config.json and config.json or under a GGUF file's keys (these the checkpoint reads:
`ModelSpec.eos_token_ids`), names in tokenizer_config.json and special_tokens_map.json, and the chat template, which
writes a token behind what the assistant said.

A GGUF file may have lost all of it but the vocabulary. There, and only there, the names that close a turn in every
model that has them count as well. `<|end|>` is not one of them: in some models it only closes one message of an answer
that goes on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Library

ROLES = ("eos_token", "eot_token", "eom_token")
# Whoever has one of these ends an answer with it.
_ALWAYS_END = frozenset(
    (
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>",
        "<end_of_utterance>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<｜end▁of▁sentence｜>",
        "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>", "<|tool_response>", "[e~[",
    )
)  # fmt: skip
_MESSAGE_END = "<|end|>"
# Where all tokens of one of these sets are there, they end answers, and `<|end|>` closes a message.
_ANSWER_ENDS = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|flush|>", "<|calls|>")))


class VocabularyNames:
    """The names of a library's tokens, to be asked for one by one: listing them takes longer than a few answers."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _is_text(name) and self._library.token_to_id(name) is not None


def closes_a_message_only(name: str, vocabulary: Container[str]) -> bool:
    """Return whether token `name` closes a message in the model with this vocabulary, and the answer may go on."""
    return name == _MESSAGE_END and any(all(end in vocabulary for end in ends) for ends in _ANSWER_ENDS)


def known_stop_tokens(vocabulary: Container[str]) -> tuple[str, ...]:
    """The tokens of a GGUF file's vocabulary that are control tokens by their names, whatever kind the file says they
    are of.
    """
    return tuple(name for name in (*sorted(_ALWAYS_END), _MESSAGE_END) if name in vocabulary)


def stop_tokens_of_gguf(vocabulary: Container[str], *, has_eot: bool, turn_end: str | None) -> tuple[str, ...]:
    """The names that end an answer besides the ids under the file's keys.

    `turn_end` is what the chat template writes behind an answer. `<|end|>` counts by its name where neither that nor
    an eot key tells of a turn.
    """
    told = has_eot or turn_end is not None
    names = [name for name in known_stop_tokens(vocabulary) if name != _MESSAGE_END or not told]
    return _without_message_ends((*names, turn_end), vocabulary)


def stop_tokens_of_folder(
    files: Iterable[Mapping[str, Any]], vocabulary: Container[str], *, turn_end: str | None
) -> tuple[str, ...]:
    """The names that end an answer besides the ids in the configurations. `files`: tokenizer_config.json and
    special_tokens_map.json.
    """
    named = [token_text(file.get(role)) for file in files for role in ROLES]
    return tuple(dict.fromkeys((*(n for n in named if n), *_without_message_ends((turn_end,), vocabulary))))


def token_text(token: Any) -> str | None:
    """A special token is written as its text or as an object with its text in `content`; None for anything else."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token and _is_text(token) else None


def _is_text(value: str) -> bool:
    """Return whether a string out of JSON can be written as UTF-8: it may hold half of a surrogate pair, and no token
    does.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_message_ends(names: Iterable[str | None], vocabulary: Container[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ending(names, vocabulary)))


def _ending(names: Iterable[str | None], vocabulary: Container[str]) -> Iterator[str]:
    for name in names:
        if name is not None and not closes_a_message_only(name, vocabulary):
            yield name
