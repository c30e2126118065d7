"""Builds the libraries that stand in for the vendor's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from homenode.transfer.carriers.hccl_link import ACL, HCCL

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile both into `folder`; it."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("hccl_stand_in.c")
    for name, words in ((ACL, ["-DSTREAMS"]), (HCCL, [])):
        file = folder / name
        words = [str(COMPILER), "-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *words]
        subprocess.run([*words, "-o", str(file), str(source)], check=True, timeout=120)
    return folder
