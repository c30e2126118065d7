"""The file of checksums beside the packages, with lines as sha256sum writes and reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

NAME = "SHA256SUMS"


def checksum(file: Path) -> str:
    """SHA-256 of the file's bytes, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_checksums(folder: Path, files: Iterable[Path]) -> Path:
    """Write the checksums of these files of the folder into it; `sha256sum --check SHA256SUMS` reads them there."""
    lines = [f"{checksum(file)}  {file.name}\n" for file in sorted(files)]
    target = folder / NAME
    target.write_text("".join(lines), encoding="utf-8")
    return target
