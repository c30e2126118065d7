"""The tokens with which a model fills in the middle of a text: marks before what comes before, before what comes after,
and where the middle begins. Which they are is told by a GGUF file's keys or tokenizer_config.json, else by names that
models are known to have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

# Prefix, suffix and middle, by families of models: names of one family belong together.
_FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)
_REPOSITORY = ("<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<fim-repo>")
_FILE = ("<|file_sep|>", "<file_sep>", "<|fim_file|>", "<filename>")
_PAD = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>")
ROLES = ("prefix_token", "suffix_token", "middle_token")  # as tokenizer_config.json calls them
GGUF_ROLES = {
    "prefix_token": ("fim_pre", "prefix"),
    "suffix_token": ("fim_suf", "suffix"),
    "middle_token": ("fim_mid", "middle"),
}


class FillInMiddleTokens(NamedTuple):
    """Token ids. `repository` and `file` begin the name of a project and of a file, where the model has them. `ends`:
    tokens that end a middle, as it does not go on after them.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None
    ends: tuple[int, ...]


def fill_in_middle_tokens(named: Mapping[str, str], token_id: Callable[[str], int | None]) -> FillInMiddleTokens | None:
    """The tokens of a vocabulary. `named`: those that the model's files name, by `ROLES`. None: the model has none."""

    def first(names: tuple[str, ...]) -> int | None:
        return next((index for name in names if (index := token_id(name)) is not None), None)

    told = tuple(named.get(role, "") for role in ROLES)
    for family in (told, *_FAMILIES) if all(told) else _FAMILIES:
        ids = [index for name in family if (index := token_id(name)) is not None]
        if len(ids) == len(ROLES):
            repository, file, pad = first(_REPOSITORY), first(_FILE), first(_PAD)
            ends = tuple(index for index in (*ids, pad, repository, file) if index is not None)
            return FillInMiddleTokens(ids[0], ids[1], ids[2], repository, file, ends)
    return None
