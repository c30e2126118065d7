"""The style of the C++ lines that changed, by clang-format and clang-tidy.

    python tools/cpp_style.py [--fix]        part of `make check`, and with --fix of `make format`

Changed is what differs from the commit in the variable BASE (HEAD without it), and every file that git does not know
yet. A tool that is not installed is named and passed over; clang-tidy also needs the compile commands that the build
of the core leaves below build/. Exit code 1 when something is not in style.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = (".cpp", ".h")


def changed_lines(diff: str) -> dict[str, list[tuple[int, int]]]:
    """Path -> first and last of each run of lines that are new or different, from a diff without context."""
    found: dict[str, list[tuple[int, int]]] = {}
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[4:].removeprefix("b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            if count and path.endswith(SUFFIXES):
                found.setdefault(path, []).append((first, first + count - 1))
    return found


def unknown_files(root: Path) -> list[str]:
    """The C++ files that git does not know yet."""
    known = _output(["git", "ls-files", "--others", "--exclude-standard", "csrc"], root)
    return [path for path in known.splitlines() if path.endswith(SUFFIXES)]


def format_lines(program: str, root: Path, lines: dict[str, list[tuple[int, int]]], fix: bool) -> list[str]:
    """The files whose given lines (no lines: all of it) clang-format would change; with `fix` it has changed them."""
    wrong = []
    for path, runs in lines.items():
        command = [program, "--style=file", *(f"--lines={first}:{last}" for first, last in runs), path]
        text = (root / path).read_text(encoding="utf-8")
        formatted = _output(command, root)
        if formatted != text:
            wrong.append(path)
            if fix:
                (root / path).write_text(formatted, encoding="utf-8")
    return wrong


def find_program(name: str) -> str | None:
    """A program beside this Python, else on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def main() -> int:
    """Check, or with --fix mend, the changed lines."""
    fix = "--fix" in sys.argv[1:]
    base = os.environ.get("BASE") or "HEAD"
    if subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"], cwd=ROOT, stdout=subprocess.DEVNULL
    ).returncode:
        base = "HEAD"  # code hosts name commits that are not there, as before the first one and after a forced push
    lines = changed_lines(_output(["git", "diff", "-U0", base, "--", "csrc"], ROOT))
    lines |= {path: [] for path in unknown_files(ROOT)}
    if not lines:
        return 0
    failed = 0
    if program := find_program("clang-format"):
        for path in format_lines(program, ROOT, lines, fix):
            failed |= not fix
            print(f"{path}: {'formatted' if fix else 'changed lines are not in the style: make format'}")
    else:
        print("the style of C++ is not checked: there is no clang-format (pip install clang-format)")
    return failed if fix else failed | _tidy(lines)


def _tidy(lines: dict[str, list[tuple[int, int]]]) -> int:
    program = find_program("clang-tidy")
    commands = sorted(ROOT.glob("build/*/compile_commands.json"), key=lambda path: path.stat().st_mtime)
    if not program or not commands:
        lacking = "compile commands of a build" if program else "clang-tidy (pip install clang-tidy)"
        print(f"C++ is not looked through: there is no {lacking}")
        return 0
    only = json.dumps([{"name": path, "lines": runs} if runs else {"name": path} for path, runs in lines.items()])
    with tempfile.TemporaryDirectory() as folder:
        kept = without_precompiled(commands[-1].read_text(encoding="utf-8"))
        (Path(folder) / commands[-1].name).write_text(kept, encoding="utf-8")
        command = [program, "--quiet", "-p", folder, "--warnings-as-errors=*", f"--line-filter={only}"]
        ran = subprocess.run([*command, *(path for path in lines if path.endswith(".cpp"))], cwd=ROOT)
    return int(ran.returncode != 0)


def without_precompiled(commands: str) -> str:
    """The compile commands of a build without its precompiled headers, which another compiler wrote."""
    return re.sub(
        r" (?:(?:-Xclang )?-include(?:-pch)? (?:-Xclang )?[^ \"]*cmake_pch[^ \"]*|-Winvalid-pch)(?=[ \"])", "", commands
    )


def _output(command: list[str], root: Path) -> str:
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
