"""The vocabulary, and conversations as token ids with a weight for every token's loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus.conversation import Conversation, Source

END_OF_TEXT, USER, ASSISTANT, SYSTEM, END = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIAL = (END_OF_TEXT, USER, ASSISTANT, SYSTEM, END)
# Each message is its role, a line break, its text and <|end|>; the assistant's answer follows the last line.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}\n"
    "{{- raise_exception('the built-in model knows the roles system, user and assistant, not ' + message['role']) -}}\n"
    "{%- endif -%}\n"
    "{{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}\n"
)
# Letters keep the space before them; numbers stand alone, up to three digits, so that 12 is the same token wherever it
# is written.
_PIECES = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(size: int, seed: int, conversations: int = 40_000) -> Tokenizer:
    """A byte-level BPE of `size` entries learned from the corpus; every byte is an entry, so no text is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, conversations), trainer)
    return tokenizer


def _texts(seed: int, conversations: int) -> Iterator[str]:
    source = Source(seed)
    # Each number is one entry.
    yield from (" ".join(str(number) for number in range(101)) for _ in range(conversations // 100))
    for _ in range(conversations):
        conversation = source.conversation()
        yield conversation.text
        for turn in conversation.turns:
            yield turn.question
            yield turn.answer


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """The id of one of SPECIAL."""
    found = tokenizer.token_to_id(text)
    if found is None:
        raise ValueError(f"the vocabulary has no {text}; train it again")
    return int(found)


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


class Encoder:
    """Turns conversations into (ids, weights); a weight is that of predicting the id beside it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {text: token_id(tokenizer, text) for text in SPECIAL}
        self._line: list[int] = tokenizer.encode("\n").ids

    def encode(self, conversation: Conversation) -> tuple[list[int], list[float]]:
        """The ids of a whole conversation. Only answers weigh, and
        short ones more for each token, or the stories would drown the sums."""
        if not conversation.turns:
            plain = [*self._text(conversation.text), self._special[END_OF_TEXT]]
            return plain, [0.5] * len(plain)
        ids: list[int] = []
        weights: list[float] = []
        if conversation.system:
            ids += self._message(SYSTEM, conversation.system)
        for turn in conversation.turns:
            ids += [*self._message(USER, turn.question), self._special[ASSISTANT], *self._line]
            weights += [0.0] * (len(ids) - len(weights))
            answer = [*self._text(turn.answer), self._special[END]]
            ids += [*answer, *self._line]
            weights += [min(1.5, max(0.4, (12 / len(answer)) ** 0.5))] * len(answer) + [0.0] * len(self._line)
        return ids, weights

    def prompt(self, question: str, earlier: Sequence[tuple[str, str]] = ()) -> list[int]:
        """The ids of a chat up to where the assistant answers."""
        ids: list[int] = []
        for asked, answered in earlier:
            ids += [*self._message(USER, asked), *self._message(ASSISTANT, answered)]
        return [*ids, *self._message(USER, question), self._special[ASSISTANT], *self._line]

    @property
    def end(self) -> int:
        return self._special[END]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def _message(self, role: str, text: str) -> list[int]:
        return [self._special[role], *self._line, *self._text(text), self._special[END], *self._line]

    def _text(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)
