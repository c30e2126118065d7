"""The tokenizer of a model's files: a folder with tokenizer.json, tekken.json or tokenizer.model.v3 and its like, or a
GGUF file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from homenode.errors import CheckpointError, UnsupportedError
from homenode.host.refusals import named_refusals
from homenode.model.checkpoint.vocabulary_file import (
    LARGEST_FILE,
    SENTENCEPIECE,
    TEKKEN,
    USUAL,
    folder_vocabulary,
    gguf_vocabulary,
    vocabulary_file,
)
from homenode.model.formats.bounded_files import is_there, read_binary, read_json, read_text
from homenode.model.formats.gguf_token_ids import token_id_of
from homenode.model.sandbox.renderer import DEFAULT_TIMEOUT_S, TemplateRenderer
from homenode.model.tokenizer.added_tokens import missing_tokens, with_tokens
from homenode.model.tokenizer.fill_in_middle import GGUF_ROLES
from homenode.model.tokenizer.named_templates import with_named_templates
from homenode.model.tokenizer.tokenizer import Tokenizer
from homenode.model.tokenizer.trial_run import TokenizerTrial, is_usable
from homenode.model.tokenizer.vocabularies.gguf_vocab import tokenizer_from_gguf
from homenode.model.tokenizer.vocabularies.library import library_from_json, named_faults
from homenode.model.tokenizer.vocabularies.sentencepiece_file import metadata_of_sentencepiece
from homenode.model.tokenizer.vocabularies.stop_tokens import (
    VocabularyNames,
    stop_tokens_of_folder,
    stop_tokens_of_gguf,
)
from homenode.model.tokenizer.vocabularies.tekken import tekken_tokenizer

# What tokenizer_config.json calls a role, and what keys of GGUF files do.
_ROLES = (
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("pad_token", "padding"),
    ("sep_token", "seperator"),
    ("cls_token", "cls"),
    ("mask_token", "mask"),
)
_MISTRAL_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def begin_trial(path: Path) -> TokenizerTrial | None:
    """Begin to try the tokenizer of the model at `path` in a process of its own, so that other work can be done until
    it is loaded.

    None where that needs no trial: the file is not there, it is homenode's own, which is as trusted as its code, or its
    content was tried by this process before.
    """
    from homenode.model.hub.locate import builtin_model  # not for the process of a trial, which is to start fast

    file = vocabulary_file(path)
    if not file.is_file() or path == builtin_model() or is_usable(path, file):
        return None
    return TokenizerTrial(path, file)


def load_tokenizer(
    path: Path,
    chat_template: str | None = None,
    chat_template_timeout: float = DEFAULT_TIMEOUT_S,
    trial: TokenizerTrial | None = None,
) -> Tokenizer:
    """The tokenizer of a folder (tokenizer.json, or one of Mistral's) or a GGUF file; `chat_template` (its text)
    replaces the model's own.

    The files are tried in a process of their own before (`trial`, where that has begun), and chat templates are
    rendered in one, for `chat_template_timeout` seconds at most. Raises CheckpointError for missing, damaged or hostile
    files, UnsupportedError for vocabularies of unknown kind, HostError when a process cannot be started or the machine
    refuses a file call or memory.
    """
    with named_refusals(f"reading the tokenizer of {path}", CheckpointError):
        return _load_tried(path, chat_template, chat_template_timeout, trial)


def _load_tried(
    path: Path, chat_template: str | None, chat_template_timeout: float, trial: TokenizerTrial | None
) -> Tokenizer:
    trial = trial or begin_trial(path)
    renderer = TemplateRenderer(chat_template_timeout)
    if chat_template or _may_have_template(path):
        renderer.start()  # it becomes ready meanwhile
    if trial is not None:
        trial.wait()
    with named_faults(f"{vocabulary_file(path)} is not a usable tokenizer"):
        return load_untried(path, chat_template, renderer)


def load_untried(path: Path, chat_template: str | None = None, renderer: TemplateRenderer | None = None) -> Tokenizer:
    """Return what `load_tokenizer` gives, in this process at once; without `renderer` there are no chat templates."""
    with named_refusals(f"reading the tokenizer of {path}", CheckpointError):
        gguf = gguf_vocabulary(path)
        found = _from_gguf(gguf, chat_template, renderer) if gguf else _from_folder(path, chat_template, renderer)
        found.source = path
        return found


def _may_have_template(path: Path) -> bool:
    """Return whether it is worth while to start what renders templates before the files have been read."""
    if path.is_file() or any((path / f"chat_template.{kind}").is_file() for kind in ("jinja", "json")):
        return True
    config = path / "tokenizer_config.json"
    with suppress(CheckpointError):  # what is wrong with the file is told when it is read for good
        return config.is_file() and '"chat_template"' in read_text(config, LARGEST_FILE)
    return False


def _from_gguf(path: Path, chat_template: str | None, renderer: TemplateRenderer | None) -> Tokenizer:
    from homenode.model.formats.gguf import read_gguf  # opened only for GGUF files

    metadata = read_gguf(path).metadata
    library = tokenizer_from_gguf(metadata)
    tokens = metadata.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    config: dict[str, Any] = {}
    for role, key in _ROLES:
        if isinstance(tokens, list) and (index := token_id_of(metadata, key, count)) is not None:
            config[role] = tokens[index]
    for role, keys in GGUF_ROLES.items():
        ids = [index for key in keys if (index := token_id_of(metadata, key, count)) is not None]
        if isinstance(tokens, list) and ids:
            config[role] = tokens[ids[0]]
    templates = {"default": chat_template} if chat_template else _gguf_templates(metadata)
    has_eot = token_id_of(metadata, "eot", count) is not None

    def stops(turn_end: str | None) -> Iterable[str]:
        return stop_tokens_of_gguf(VocabularyNames(library), has_eot=has_eot, turn_end=turn_end)

    return Tokenizer(
        library,
        config,
        with_named_templates(templates) if renderer else {},
        renderer=renderer,
        stop_tokens=stops,
        of_gguf=True,
    )


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {
        key[len(prefix) :].lstrip(".") or "default": value
        for key, value in metadata.items()
        if key.startswith(prefix) and isinstance(value, str)
    }
    return dict(sorted(found.items(), key=lambda item: item[0] != "default"))


def _from_folder(path: Path, chat_template: str | None, renderer: TemplateRenderer | None) -> Tokenizer:
    file = folder_vocabulary(path)
    config, named = _json(path / "tokenizer_config.json"), _json(path / "special_tokens_map.json")
    if file.name != USUAL:
        library, roles = _of_mistral(file)
        config = roles | config
    else:
        library = _usual_library(file, config | {role: named[role] for role in named if role not in config})
    files = (dict(config), named)
    for role, value in named.items():
        config.setdefault(role, value)
    templates = {"default": chat_template} if chat_template else _folder_templates(path, config)

    def stops(turn_end: str | None) -> Iterable[str]:
        return stop_tokens_of_folder(files, VocabularyNames(library), turn_end=turn_end)

    return Tokenizer(
        library, config, with_named_templates(templates) if renderer else {}, renderer=renderer, stop_tokens=stops
    )


def _usual_library(file: Path, config: Mapping[str, Any]) -> Library:
    """Return what tokenizer.json has, with the tokens that only `config` names."""
    if not is_there(file):
        if (file.parent / SENTENCEPIECE).is_file():
            raise UnsupportedError(
                f"{file.parent} has a SentencePiece tokenizer.model but no tokenizer.json; save the tokenizer once "
                "with "
                "transformers (save_pretrained) to get one"
            )
        raise CheckpointError(f"{file.parent} has no {USUAL}, nor {TEKKEN} or {SENTENCEPIECE}.v3 and its like")
    text = read_text(file, LARGEST_FILE)
    library = library_from_json(text, str(file))
    missing = missing_tokens(library, config)
    return library_from_json(with_tokens(text, missing), str(file)) if missing else library


def _of_mistral(file: Path) -> tuple[Library, dict[str, Any]]:
    """Return what a file of Mistral's has, and which of its tokens have a role."""
    if file.name == TEKKEN:
        library = tekken_tokenizer(file, read_json(file, LARGEST_FILE))
    else:
        library = tokenizer_from_gguf(metadata_of_sentencepiece(file, read_binary(file, LARGEST_FILE)))
    return library, {role: name for role, name in _MISTRAL_ROLES.items() if library.token_to_id(name) is not None}


def _folder_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = path / "chat_template.jinja"
    if is_there(file):
        return {"default": read_text(file, LARGEST_FILE)}
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


def _json(file: Path) -> dict[str, Any]:
    """The JSON object in a file of the model's folder; empty where the folder has no such file."""
    return read_json(file, LARGEST_FILE) if is_there(file) else {}
