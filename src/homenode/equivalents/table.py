"""One table of the names that other programs have for settings: which row a flag is in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

from homenode.equivalents import llama_cpp, sglang, vllm
from homenode.equivalents.equivalent import Equivalent, FollowingWords, Meaning

PROGRAMS: Mapping[str, tuple[Equivalent, ...]] = {
    "vLLM": vllm.EQUIVALENTS,
    "llama.cpp": llama_cpp.EQUIVALENTS,
    "SGLang": sglang.EQUIVALENTS,
}


class KnownFlag(NamedTuple):
    """A flag of another program. `off`: it is `--no-name` of a switch."""

    program: str
    row: Equivalent
    values: FollowingWords
    off: bool = False

    def meaning(self, value: str) -> Meaning | None:
        """Return what it means with this value; None: it is left to our own setting of the same name."""
        return self.row.switched_off if self.off else self.row.of(value)


@cache
def known_flags() -> Mapping[str, KnownFlag]:
    """Each flag of the table by its name, and of switches the names that switch them off."""
    named, off = {}, {}
    for program, rows in PROGRAMS.items():
        for row in rows:
            for flag, values in row.flags:
                named[flag] = KnownFlag(program, row, values)
                if values is FollowingWords.NONE and flag.startswith("--") and not flag.startswith("--no-"):
                    off["--no-" + flag[2:]] = KnownFlag(program, row, values, off=True)
    return {**off, **named}


def written_as(name: str, own: Collection[str]) -> str:
    """A flag as the table or our own command spells it: vLLM and llama.cpp take underscores, and vLLM a part of a
    setting behind a point. The name itself where nobody has it."""
    base = "--" + name[2:].replace("_", "-")
    forms = (
        (name, base, base.partition(".")[0], name.partition(".")[0])
        if name.startswith("--")
        else (
            name,
            name.partition(".")[0],
            name[:2] if name.startswith("-O") else name,
        )
    )
    return next((form for form in forms if form in own or form in known_flags()), name)
