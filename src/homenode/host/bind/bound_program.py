"""Facts that a program that is about to be bound tells of itself where it is vLLM: its release, from the folder it is
installed in, and whether it hands over KV. Nothing of it is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_DISTRIBUTION = re.compile(r"vllm(?:[_-]cpu)?-([0-9]+\.[0-9]+[0-9A-Za-z.+]*)\.dist-info")
_PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
_UNTAGGED = "0.1.dev"  # built from sources without tags: it may be any release
_LONGEST_LINE = 512
_KV_TRANSFER = "--kv-transfer-config"


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """`vllm_version`: the release, None where it cannot be told. `kv_transfer`: whether its flags ask for it."""

    vllm_version: str | None
    kv_transfer: bool


def read_program(path: str, command: Sequence[str]) -> BoundProgram | None:
    """Return what is known of the program in the file `path`, started as `command`; None where it is not vLLM."""
    name = Path(path).name
    if name != "vllm" and not (name.startswith("python") and _runs_vllm(command[1:])):
        return None
    interpreter = path if name != "vllm" else _interpreter(path)
    asked = any(word.partition("=")[0] == _KV_TRANSFER for word in command)
    return BoundProgram(None if interpreter is None else _installed(Path(interpreter).parent.parent), asked)


def _runs_vllm(words: Sequence[str]) -> bool:
    return any(word.partition(".")[0] == "vllm" or Path(word).name == "vllm" for word in words)


def _interpreter(path: str) -> str | None:
    """The program that the first line of a script names."""
    try:
        with Path(path).open("rb") as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return None
    words = line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    return words[0] if words and not words[0].endswith("/env") else None


def _installed(prefix: Path) -> str | None:
    for packages in _PACKAGES:
        for folder in sorted(prefix.glob(packages)):
            for found in sorted(folder.glob("vllm*.dist-info")):
                match = _DISTRIBUTION.fullmatch(found.name)
                if match and not match[1].startswith(_UNTAGGED):
                    return match[1]
    return None
