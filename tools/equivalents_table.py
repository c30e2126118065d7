"""Write docs/other-programs.md from the table of other programs' settings: `python -m tools.equivalents_table` (a test
holds the page up to date).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from homenode.engine.config import EngineConfig, own_flags
from homenode.equivalents.equivalent import (
    AlwaysSo,
    Equivalent,
    FollowingWords,
    Meaning,
    ModelName,
    NoEffect,
    NotOffered,
    Taken,
)
from homenode.equivalents.kv_transfer import ALIASES, CONNECTOR_KEYS, FAMILIES, KEYS
from homenode.equivalents.table import PROGRAMS
from homenode.equivalents.translation import OwnFlag
from homenode.equivalents.variables import FLAGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "other-programs.md"
_INTRODUCTION = """# Settings of other programs

`homenode serve`, `generate` and `chat` take the flags of vLLM, llama.cpp and SGLang by their names there, `LLM` takes
them as keyword arguments, and a file given by `--config` as keys. A flag that is not in these tables has the same name
here ([settings](settings.md)), or is unknown to homenode and refused. What becomes of one:

- *taken*: it is the named setting of ours. `--show-config` shows which name it was given by. Two names of one setting
  that say different things are refused.
- *always so*: what it asks for is so in any case.
- *told*: it is accepted, and a line on standard error names it and says why it has no effect.
- *refused*: the start ends with exit code 2 and what to do instead.

A name with `V ...` takes several values, and `--no-` in front of the name of a switch switches it off. Underscores may
stand for dashes, and `--flag=value` for `--flag value`. A flag that means a setting of another command of homenode is
told. Where MODEL is named by nothing else, it is the last of the words behind a flag of several values.

Variables of these programs that mean a setting are taken where neither a flag nor a variable `HOMENODE_...` says
otherwise, and never end a start: what would be refused is told. Each names its flag:
"""
_KV = """
## Files and JSON of `--kv-transfer-config`

The file's keys are the settings' names with underscores, or LMCache's. Text that begins with a brace is JSON: vLLM's
form, or the same keys. What none of these programs has is refused with the nearest name.

| key | here |
|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION, *_variables()]
    for program, rows in PROGRAMS.items():
        parts += [f"\n## {program}\n", "| flag | here |", "|---|---|", *(line for row in rows for line in _lines(row))]
    return "\n".join(parts) + "\n" + _KV + "\n".join(_keys()) + "\n"


def _variables() -> Iterator[str]:
    yield "| variable | flag |"
    yield "|---|---|"
    yield from (f"| `{variable}` | `{flag}` |" for variable, flag in FLAGS.items())


def _lines(row: Equivalent) -> Iterator[str]:
    by_meaning: dict[Meaning, list[str]] = {}
    for value, meaning in row.values.items():
        by_meaning.setdefault(meaning, []).append(value)
    names = ", ".join(
        f"`{flag} V ...`" if count is FollowingWords.SEVERAL else f"`{flag}`" for flag, count in row.flags
    )
    for meaning, values in by_meaning.items():
        yield f"| {names}: {', '.join(f'`{value}`' for value in values)} | {_said(meaning)} |"
    if row.meaning is not None:
        others = " (other values)" if row.values else ""
        yield f"| {names}{others} | {_said(row.meaning)} |"


def _said(meaning: Meaning) -> str:
    match meaning:
        case Taken(flag, value, note):
            opposite = flag.replace("--", "--no-", 1)
            said = f"`{opposite}`" if value == "off" and opposite in _own() else f"`{flag} {value}`"
            said = said if value else f"`{flag}`"
            return f"taken: {said.replace(' on`', '`')}" + (f"; told: {note}" if note else "")
        case ModelName():
            return "taken: MODEL"
        case AlwaysSo(why):
            return f"always so: {why}"
        case NoEffect(why):
            return f"told: {why}"
        case NotOffered(instead):
            return f"refused: {instead}"


@functools.cache
def _own() -> Mapping[str, OwnFlag]:
    return own_flags(EngineConfig)


def _keys() -> Iterator[str]:
    for key, name in ALIASES.items():
        yield f"| `{key}` | taken: `{name}` |"
    grouped: dict[str, list[str]] = {}
    for key, meaning in (*KEYS.items(), *((f"{start}...", meaning) for start, meaning in FAMILIES.items())):
        grouped.setdefault(_said(meaning), []).append(f"`{key}`")
    yield from (f"| {', '.join(keys)} | {said} |" for said, keys in grouped.items())
    yield "| `kv_role` (vLLM): `kv_producer`, `kv_consumer` | taken: `pd_role`, sender and receiver |"
    yield "| `kv_role` (vLLM): `kv_both` | told of connectors that keep KV for one server, refused of those of a pair |"
    grouped = {}
    for key, meaning in CONNECTOR_KEYS.items():
        grouped.setdefault(_said(meaning), []).append(f"`{key}`")
    yield from (f"| {', '.join(keys)} (vLLM) | {said} |" for said, keys in grouped.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
