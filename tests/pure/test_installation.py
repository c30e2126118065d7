"""What messages tell people to type: commands that work from how homenode was installed here."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from homenode.installation import Installation, extra_command, install_command, read_installation
from tests.paths import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
_METADATA = """Metadata-Version: 2.1
Name: homenode
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.6; extra == "torch"
Requires-Dist: matplotlib (>=3.8) ; (python_version > "3") and extra == 'bench'
"""
ORIGINS = {
    "an index": (None, "homenode", False),
    "a wheel file": ({"url": "file:///tmp/a%20b/homenode-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl",
        "archive_info": {}}, "/tmp/a b/homenode-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl", False),
    "a folder": ({"url": "file:///src/homenode", "dir_info": {}}, "/src/homenode", False),
    "a clone, editable": ({"url": "file:///src/homenode", "dir_info": {"editable": True}}, "/src/homenode", True),
    "a repository": ({"url": "https://example.org/homenode.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
        "git+https://example.org/homenode.git", False),
    "a file that is broken": ("not JSON", "homenode", False),
}  # fmt: skip


def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch, installer: str, origin: object) -> Installation:
    """What is read of an installation that an installer left in `folder`."""
    said = folder / "homenode-0.1.0.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(_METADATA)
    (said / "INSTALLER").write_text(installer + "\n")
    if origin is not None:
        (said / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return read_installation()


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_from_where_it_was_installed(
    origin: str, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, source, editable = ORIGINS[origin]
    here = _installed(tmp_path, monkeypatch, installer, told)
    assert here.editable == editable
    again = here.again_command()
    assert again.startswith("uv pip install --python " if installer == "uv" else (f"{sys.executable} -m", "pip"))
    assert again.endswith(f"'{source}'" if " " in source else source)
    assert ("--editable" in again) == editable
    for command in (here.extra_command("torch"), here.extra_command("bench"), here.command("torch")):
        assert "homenode" not in command.replace(sys.executable, "")
    assert here.extra_command("torch").endswith("install 'torch>=2.6'") or installer == "uv"
    assert here.extra_command("bench").endswith(" 'matplotlib>=3.8'")


def test_pipx_has_commands_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipx_metadata.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    here = _installed(tmp_path, monkeypatch, "pip", None)
    assert here.extra_command("torch") == "pipx inject homenode 'torch>=2.6'"
    assert here.again_command() == "pipx reinstall --verbose homenode"


def test_a_program_that_nobody_installed_names_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    assert read_installation().again_command().endswith(f"--editable {ROOT}")
    assert extra_command("bench", "matplotlib").endswith("install matplotlib")


def test_the_pip_of_another_python_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Installation("/env/bin/python").command("ray") == "/env/bin/python -m pip install ray"
    assert Installation(str(tmp_path / "python")).command("ray") == "pip install ray"


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_found_and_its_packages_are_those_of_the_project(extra: str) -> None:
    for package in EXTRAS[extra]:
        assert package in extra_command(extra, "nothing")


def test_the_command_is_one_that_this_installer_takes() -> None:
    """Not run for what it does, which takes an index: pip reads all of it before it looks for packages."""
    command = install_command("homenode-needs-nothing-of-this-name; python_version < '3'")
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_message_names_an_extra_of_a_package_that_no_index_has() -> None:
    wrong = re.compile(r"install[^\n]*homenode\[|pip install(?! of)\s+['\"]?[a-z{]")
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in (ROOT / "src").rglob("*.py")
        if file.name != "installation.py"
        for match in wrong.finditer(file.read_text(encoding="utf-8"))
    }
    assert not found, "commands come from homenode.installation"


def test_no_page_installs_homenode_by_its_name_alone() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    wrong = re.compile(r"pip install[^\n`]*['\" ]homenode(\[[a-z,]+\])?['\"]?\s")
    found = {f"{page.name}: {match[0]}" for page in pages for match in wrong.finditer(page.read_text(encoding="utf-8"))}
    assert not found, "a wheel file, a folder or the packages themselves are named instead"
