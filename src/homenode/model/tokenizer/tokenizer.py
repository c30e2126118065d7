"""Text to token ids and back, for both kinds of model file, on the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from homenode.errors import UserError
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.tokenizer.fill_in_middle import ROLES, FillInMiddleTokens, fill_in_middle_tokens
from homenode.model.tokenizer.literal_text import HiddenNames, LiteralEncoder
from homenode.model.tokenizer.pieces import PieceEncoder
from homenode.model.tokenizer.stream import ByteStream, WindowStream
from homenode.model.tokenizer.surrounding_tokens import read_surrounding_tokens
from homenode.model.tokenizer.template_traits import TemplateTraits, read_traits
from homenode.model.tokenizer.token_bound import TokenBound
from homenode.model.tokenizer.vocabularies.gguf_vocab import make_special
from homenode.model.tokenizer.vocabularies.library import with_named_faults
from homenode.model.tokenizer.vocabularies.stop_tokens import VocabularyNames, token_text
from homenode.model.tokenizer.vocabularies.token_bytes import TokenBytes, byte_rule, piece_bytes

_SHORT_TEXT = 8192  # characters, or tokens; the library keeps the interpreter's lock meanwhile, for milliseconds
_PIECE = 65536  # tokens that become text while no other thread of Python runs
_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A vocabulary with its rules. Safe to use from several threads."""

    def __init__(
        self,
        library: Library,
        config: Mapping[str, Any],
        chat_templates: Mapping[str, str],
        *,
        renderer: TemplateRenderer | None = None,
        stop_tokens: Callable[[str | None], Iterable[str]] = lambda turn_end: (),
        of_gguf: bool = False,
    ) -> None:
        """`config` is tokenizer_config.json (or its likeness from GGUF); `chat_templates` by name, "default" first
        among them.

        `renderer` renders the templates, by default one of this tokenizer's own. `stop_tokens` tells the names of the
        tokens that end an answer, given the one that the chat template writes behind it. `of_gguf`: conversations begin
        with the BOS that the file adds to texts.
        """
        self.source: Path | None = None  # the files that it was read from, where it was
        library = with_named_faults(library)
        self._library = library
        self._special = {role: text for role in _SPECIAL_ROLES if (text := token_text(config.get(role)))}
        self._config = dict(config)
        self._renderer = renderer = renderer or TemplateRenderer()
        self._templates = {
            name: ChatTemplate(source, self._special, renderer) for name, source in chat_templates.items()
        }
        self._traits = {name: self._traits_of(template) for name, template in self._templates.items()}
        first = next(iter(self._traits.values()), TemplateTraits())
        stops = tuple(stop_tokens(first.turn_end))
        if of_gguf:
            make_special(library, stops)
        # Ids that end an answer besides those the model's configuration or the keys of its GGUF file have by number.
        self.stop_token_ids = tuple(i for name in stops if (i := self.token_id(name)) is not None)
        self.vocab_size = library.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._id("bos_token")
        self.eos_token_id = self._id("eos_token")
        self.surrounding = read_surrounding_tokens(library, opens_chats=of_gguf)
        self._rule = byte_rule(library)
        self._bytes = TokenBytes(
            library, piece_bytes(library), added_are_text=self._rule is not None and not self._rule.each_byte
        )

        self._pieces = PieceEncoder(library)
        self._bound = TokenBound(library, self.token_bytes)
        self._literals = LiteralEncoder(
            library, lambda text: any(text in template.source for template in self._templates.values())
        )
        self._named_special = {
            int(index): str(token.content)
            for index, token in library.get_added_tokens_decoder().items()
            if token.special and token.content
        }

    def close(self) -> None:
        """End the processes that render chat templates, which end with the last reference or the program otherwise."""
        self._renderer.close()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with the BOS or EOS the model wants around a text unless `add_special_tokens` is off.

        Raises CapacityError for a very long text that cannot be divided.
        """
        if len(text) > _SHORT_TEXT:
            return list(chain.from_iterable(self.encode_pieces(text, add_special_tokens)))
        return list(self._library.encode(_without_surrogates(text), add_special_tokens=add_special_tokens).ids)

    def encode_pieces(
        self, text: str, add_special_tokens: bool = True, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        """The same ids, some at a time: the work for each item is bounded, and other threads run meanwhile.

        `hidden`: the names that were hidden in the text before it was rendered; they are encoded as text.
        """
        text = _without_surrogates(text)
        if hidden is None or not hidden.any:
            yield from self._pieces.pieces(text, add_special_tokens)
        else:
            pieces = self._literals.pieces(text, hidden, self._pieces.pieces)
            yield from self._pieces.surrounded(pieces) if add_special_tokens else pieces

    def hidden_names(self) -> HiddenNames:
        """Return the hidden names for one conversation: hides the names of control tokens in it, so that they do not
        become tokens.
        """
        return self._literals.hidden_names()

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` certainly has, told without encoding it; 0: nothing is known."""
        return self._bound.fewest_tokens(text)

    def encode_chat(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a rendered conversation; `surrounding_tokens` has what is added to the tokens that the template
        wrote.
        """
        return self.chat_prompt(self.encode(text, add_special_tokens=False), add_special_tokens)

    def chat_prompt(self, ids: list[int], add_special_tokens: bool | None = None) -> list[int]:
        """The same for a conversation that has been encoded without special tokens."""
        return self.surrounding.chat_prompt(ids, add_special_tokens)

    def encode_chat_pieces(
        self, text: str, add_special_tokens: bool | None = None, hidden: HiddenNames | None = None
    ) -> Iterator[list[int]]:
        """The ids of `encode_chat`, in pieces as those of `encode_pieces`."""
        return self.surrounding.chat_pieces(self.encode_pieces(text, False, hidden), add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that form no character come out as U+FFFD. Ids outside the vocabulary give nothing."""
        if self._rule is not None:
            stream = ByteStream(self._bytes, self._rule, skipped=self._bytes.special if skip_special_tokens else ())
            pieces = (ids[at : at + _PIECE] for at in range(0, len(ids), _PIECE))  # other threads run between them
            return "".join([*map(stream.push, pieces), stream.flush()])
        if len(ids) > _SHORT_TEXT:  # decode() would keep the interpreter's lock
            return str(self._library.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)[0])
        return str(self._library.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def stream(
        self, context: Sequence[int] = (), skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> ByteStream | WindowStream:
        """An incremental decoder; `context` are ids before the first pushed one whose text has already been
        given out. `shown`: special tokens that have text even where others are skipped.
        """
        skipped = self._bytes.special.difference(shown) if skip_special_tokens else frozenset()
        if self._rule is not None:
            return ByteStream(self._bytes, self._rule, context, skipped=skipped)
        if not shown:
            return WindowStream(lambda ids: self.decode(ids, skip_special_tokens), context)
        return WindowStream(lambda ids: self.decode([token for token in ids if token not in skipped], False), context)

    @property
    def bytes_are_text(self) -> bool:
        """Return whether a text is what the bytes of its tokens spell, one after another."""
        return self._rule is not None

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The tokens that are no text: control tokens, which answers do not show."""
        return self._bytes.special

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for (of a special token its name); empty for ids outside the vocabulary."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """One token as text; bytes that are no whole character come out as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def has_token(self, token: int) -> bool:
        """Return whether the vocabulary has a token of this id."""
        return self._library.id_to_token(token) is not None

    @property
    def added_tokens(self) -> tuple[int, ...]:
        """The ids of the tokens that are found in a text before it is cut into words, special ones and others,
        ascending.
        """
        return tuple(sorted(int(index) for index in self._library.get_added_tokens_decoder()))

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        """The special tokens, by id, whose names occur in one of these texts: a stop string may name one, and answers
        do not show them.
        """
        return {index: name for index, name in self._named_special.items() if any(name in text for text in texts)}

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        found = self._library.token_to_id(token)
        return None if found is None else int(found)

    @property
    def fill_in_middle(self) -> FillInMiddleTokens | None:
        """The tokens with which the model fills in the middle of a text; None where it has none."""
        named = {role: text for role in ROLES if (text := token_text(self._config.get(role)))}
        return fill_in_middle_tokens(named, self.token_id)

    @property
    def has_chat_template(self) -> bool:
        """Return whether the model came with a chat template."""
        return bool(self._templates)

    def template_source(self, with_tools: bool = False) -> str | None:
        """The text of the chat template for conversations, or for those `with_tools`; None where there is none."""
        template = self._templates.get(self._template_name(with_tools))
        return template.source if template else None

    @property
    def response_template(self) -> Any:
        """Return what tokenizer_config.json says about the form of answers, None where it says nothing."""
        return self._config.get("response_template")

    def _template_name(self, with_tools: bool) -> str:
        name = "tool_use" if with_tools and "tool_use" in self._templates else "default"
        return name if name in self._templates else next(iter(self._templates), name)

    def render_chat(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The prompt text of a conversation; `values` may have any names. Blocks for as long as a rendering takes.

        The content of a message may be a string or a list of parts; the template gets the form that it shows. Raises
        UserError when there is no template, it refuses the messages or takes too long, OverloadedError when others
        take all the time.
        """
        name = self._template_name(bool(tools))
        template = self._templates.get(name)
        if template is None:
            raise UserError(
                "this model has no chat template; use /v1/completions with a plain prompt, or give one with "
                "--chat-template",
                param="messages",
            )
        said = self._traits[name].conform(messages)
        return template.render(said, add_generation_prompt=add_generation_prompt, tools=tools, **values)

    def info(self) -> dict[str, Any]:
        """Return what clients want to know: special tokens, chat template, sizes."""
        template = next(iter(self._templates.values()), None)
        kept = {
            k: v for k, v in self._config.items() if isinstance(v, str | int | float | bool) and k != "chat_template"
        }
        return {
            **kept,
            **self._special,
            "tokenizer_class": kept.get("tokenizer_class", "PreTrainedTokenizerFast"),
            "vocab_size": self.vocab_size,
            "chat_template": template.source if template else None,
        }

    def _traits_of(self, template: ChatTemplate) -> TemplateTraits:
        added = [token.content for token in self._library.get_added_tokens_decoder().values()]
        return read_traits(template.render_trial, added, VocabularyNames(self._library))

    def _id(self, role: str) -> int | None:
        text = self._special.get(role)
        return None if text is None else self.token_id(text)


def _without_surrogates(text: str) -> str:
    """JSON can carry lone surrogates, which are no text: each becomes U+FFFD, as in any UTF-8 decoder."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
