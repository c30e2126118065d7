"""Text to token ids and back, for both kinds of model file, on the `tokenizers` library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.tokenizer.gguf_vocab import tokenizer_from_gguf
from homenode.model.tokenizer.stream import TextStream

_LARGEST_FILE = 256 * 2**20
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A vocabulary with its rules. Safe to use from several threads."""

    def __init__(self, library: Library, config: Mapping[str, Any], chat_templates: Mapping[str, str]) -> None:
        """`config` is tokenizer_config.json (or its likeness from GGUF); `chat_templates` by name, "default" first among them."""
        self._library = library
        self._special = {role: text for role in _SPECIAL_ROLES if (text := _content(config.get(role)))}
        self._config = dict(config)
        self._templates = {name: ChatTemplate(source, self._special) for name, source in chat_templates.items()}
        self.vocab_size = library.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = self._id("bos_token")
        self.eos_token_id = self._id("eos_token")
        self._bytes = _piece_reader(library)
        added = {int(index): token for index, token in library.get_added_tokens_decoder().items()}
        self._added = {index: token.content.encode() for index, token in added.items()}
        self._hidden = {index: str(token.content) for index, token in added.items() if token.special}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with the BOS or EOS the model wants around a text unless `add_special_tokens` is off."""
        return list(self._library.encode(_without_surrogates(text), add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that form no character come out as U+FFFD. Ids outside the vocabulary give nothing."""
        return str(self._library.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def stream(self, context: Sequence[int] = (), skip_special_tokens: bool = True) -> TextStream:
        """An incremental decoder; `context` are ids before the first pushed one whose text has already been given out."""
        return TextStream(lambda ids: self.decode(ids, skip_special_tokens), context)

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for (of a special token its name); empty for ids outside the vocabulary."""
        piece = self._library.id_to_token(token)
        if piece is None:
            return b""
        added = self._added.get(token)
        return added if added is not None else self._bytes(piece)

    def token_text(self, token: int) -> str:
        """One token as text; bytes that are no whole character come out as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        """The special tokens, by id, whose names occur in one of these texts: a stop string may name one, and answers do not show them."""
        return {index: name for index, name in self._hidden.items() if name and any(name in text for text in texts)}

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        found = self._library.token_to_id(token)
        return None if found is None else int(found)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model came with a chat template."""
        return bool(self._templates)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **values: Any,
    ) -> str:
        """The prompt text of a conversation. Raises UserError when there is no template or it refuses the messages."""
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()), None)
        if template is None:
            raise UserError(
                "this model has no chat template; use /v1/completions with a plain prompt, or give one with --chat-template",
                param="messages",
            )
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **values)

    def info(self) -> dict[str, Any]:
        """What clients want to know: special tokens, chat template, sizes."""
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

    def _id(self, role: str) -> int | None:
        text = self._special.get(role)
        return None if text is None else self.token_id(text)


def load_tokenizer(path: Path, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (tokenizer.json) or a GGUF file; `chat_template` (its text) replaces the model's own.

    Raises CheckpointError for missing or damaged files, UnsupportedError for vocabularies of unknown kind.
    """
    gguf = _gguf_file(path)
    return _from_gguf(gguf, chat_template) if gguf else _from_folder(path, chat_template)


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that holds the vocabulary, the first of a split one; None for a folder with a tokenizer.json or without GGUF files."""
    from homenode.model.checkpoint.gguf_set import find_gguf, first_shard

    if path.is_file():
        return first_shard(path) if path.suffix == ".gguf" else None
    if (path / "tokenizer.json").is_file() or not any(path.glob("*.gguf")):
        return None
    return find_gguf(path)


def _from_gguf(path: Path, chat_template: str | None) -> Tokenizer:
    from homenode.model.checkpoint.gguf import read_gguf  # opened only for GGUF files

    metadata = read_gguf(path).metadata
    library = tokenizer_from_gguf(metadata)
    tokens = metadata.get("tokenizer.ggml.tokens")
    config: dict[str, Any] = {}
    for role, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(tokens, list) and isinstance(index, int) and 0 <= index < len(tokens):
            config[role] = tokens[index]
    templates = {"default": chat_template} if chat_template else _gguf_templates(metadata)
    return Tokenizer(library, config, templates)


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {
        key[len(prefix) :].lstrip(".") or "default": value
        for key, value in metadata.items()
        if key.startswith(prefix) and isinstance(value, str)
    }
    return dict(sorted(found.items(), key=lambda item: item[0] != "default"))


def _from_folder(path: Path, chat_template: str | None) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        if (path / "tokenizer.model").is_file():
            raise UnsupportedError(
                f"{path} has a SentencePiece tokenizer.model but no tokenizer.json; save the tokenizer once with transformers (save_pretrained) to get one"
            )
        raise CheckpointError(f"{path} has no tokenizer.json")
    try:
        library = Library.from_str(_text(file))
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception for anything wrong in the file
        raise CheckpointError(f"{file} is not a tokenizer: {error}") from error
    config = _json(path / "tokenizer_config.json")
    for role, value in _json(path / "special_tokens_map.json").items():
        config.setdefault(role, value)
    library.no_truncation()  # a length limit in the file is for training; cutting a prompt silently would change its meaning
    library.no_padding()
    templates = {"default": chat_template} if chat_template else _folder_templates(path, config)
    return Tokenizer(library, config, templates)


def _folder_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = path / "chat_template.jinja"
    if file.is_file():
        return {"default": _text(file)}
    value = _json(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        named = {
            str(entry.get("name")): entry["template"]
            for entry in value
            if isinstance(entry, dict) and isinstance(entry.get("template"), str)
        }
        return dict(sorted(named.items(), key=lambda item: item[0] != "default"))
    return {}


def _text(file: Path) -> str:
    from homenode.model.checkpoint.reading import refuse_stand_in  # as above

    refuse_stand_in(file)
    if file.stat().st_size > _LARGEST_FILE:
        raise CheckpointError(f"{file} has {file.stat().st_size} bytes; a tokenizer file has at most {_LARGEST_FILE}")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file} is not UTF-8 text: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object; found {type(value).__name__}")
    return value


def _content(token: Any) -> str | None:
    """A special token is written as its text or as an object with its text in `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _without_surrogates(text: str) -> str:
    """JSON can carry lone surrogates, which are no text: each becomes U+FFFD, as in any UTF-8 decoder."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _piece_reader(library: Library) -> Callable[[str], bytes]:
    """How the vocabulary writes bytes: as stand-in letters (byte-level BPE) or as text with `▁` for a space and <0x0A> for a byte."""
    kinds = set(_decoder_kinds(json.loads(library.decoder.__getstate__()))) if library.decoder else set()
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        return lambda piece: b"".join(letters.get(c, c.encode()) for c in piece)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece_bytes
    return lambda piece: piece.encode()


def _decoder_kinds(decoder: Any) -> Iterable[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for inner in decoder.get("decoders", ()):
            yield from _decoder_kinds(inner)


def _sentencepiece_bytes(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


def _byte_letters() -> dict[str, bytes]:
    """The 256 letters byte-level BPE writes bytes with: printable Latin-1 as itself, the others from U+0100 on in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(rest)}
