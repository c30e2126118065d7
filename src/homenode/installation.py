"""The way in which homenode came onto this machine, and the commands that install what it lacks: of those that work
here, whatever index holds homenode itself.

Extras are named by the packages they stand for, never as `homenode[torch]`: no index needs to have homenode for that,
and nothing is compiled anew.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "homenode"
_REQUIREMENT = re.compile(r"(?P<package>[^;]*?)\s*;.*\bextra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]\)?\s*$")


@dataclass(frozen=True)
class Installation:
    """`python`: the interpreter that runs homenode. `installer`: `pip`, `uv` or `pipx`. `source`: the folder, file or
    address that homenode was installed from; none where an index had it, and where that is not known. `editable`: the
    program is read from that folder itself. `extras`: the packages that each extra stands for."""

    python: str
    installer: str = "pip"
    source: str | None = None
    editable: bool = False
    extras: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def command(self, *packages: str) -> str:
        """The command that installs these packages beside homenode, as somebody types it into a shell."""
        quoted = " ".join(shlex.quote(package) for package in packages)
        if self.installer == "pipx":
            return f"pipx inject {NAME} {quoted}"
        return f"{self._install()} {quoted}"

    def extra_command(self, extra: str) -> str:
        """The command that installs the packages of an extra, such as `torch`. KeyError for an extra that homenode does
        not have."""
        return self.command(*dict(self.extras)[extra])

    def again_command(self) -> str:
        """The command that installs homenode itself once more from where it came, with what the compiler says of it."""
        if self.installer == "pipx":
            return f"pipx reinstall --verbose {NAME}"
        where = shlex.quote(self.source or NAME)
        kind = "--editable " if self.editable else ""
        return f"{self._install()} -v --force-reinstall --no-deps {kind}{where}"

    def _install(self) -> str:
        python = shlex.quote(self.python)
        if self.installer == "uv":
            return f"uv pip install --python {python}"
        beside = shutil.which("pip")
        ours = beside is not None and Path(beside).parent == Path(self.python).parent
        return "pip install" if ours else f"{python} -m pip install"


def read_installation(name: str = NAME) -> Installation:
    """Return what the files that the installer left say of the package `name`; of a program that runs from a folder
    that nobody installed, what the folder's own description says.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # brings many modules, for messages only

    try:
        found = distribution(name)
    except PackageNotFoundError:
        return Installation(sys.executable, source=_folder_around(Path(__file__)), extras=(), editable=True)
    source, editable = _source(found)
    return Installation(sys.executable, _installer(found), source, editable, _extras(found))


def install_command(*packages: str) -> str:
    """The command that installs these packages beside homenode on this machine."""
    return read_installation().command(*packages)


def extra_command(extra: str, package: str) -> str:
    """The command that installs the extra's packages on this machine; `package` alone where homenode's description does
    not say what they are."""
    here = read_installation()
    return here.extra_command(extra) if extra in dict(here.extras) else here.command(package)


def again_command() -> str:
    """The command that installs homenode itself once more on this machine, from where it came."""
    return read_installation().again_command()


def _installer(found: Distribution) -> str:
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return "pipx"
    named = (found.read_text("INSTALLER") or "").strip()
    return "uv" if named == "uv" or importlib.util.find_spec("pip") is None else "pip"


def _source(found: Distribution) -> tuple[str | None, bool]:
    """Return where the distribution was installed from (its direct_url.json, if there is one), and whether it is
    editable.
    """
    try:
        said = json.loads(found.read_text("direct_url.json") or "{}")
        url = str(said.get("url") or "")
        editable = bool(said.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return None, False
    parts = urlsplit(url)
    if parts.scheme == "file":
        return unquote(parts.path), editable
    if vcs := said.get("vcs_info"):
        return f"{vcs.get('vcs', 'git')}+{url}", editable
    return url or None, editable


def _extras(found: Distribution) -> tuple[tuple[str, tuple[str, ...]], ...]:
    extras: dict[str, tuple[str, ...]] = {}
    for requirement in found.requires or ():
        if match := _REQUIREMENT.fullmatch(requirement):
            extras[match["extra"]] = (*extras.get(match["extra"], ()), re.sub(r"[ ()]", "", match["package"]))
    return tuple(extras.items())


def _folder_around(file: Path) -> str | None:
    """The folder of the project that this file is part of, if it is one that can be installed."""
    return next((str(folder) for folder in file.parents if (folder / "pyproject.toml").is_file()), None)
