"""Recorded hosts: one JSON file from which a machine is read as if it were here.

    {"format": "homenode-host/1", "machine": "aarch64", "about": "...", "env": {name: value}, "files": {path: text},
     "commands": {command line: output, or {"out": output, "rc": exit code, "err": standard error of one that failed}}}

`about` is for people and may be left out, as may `env` and `commands`. Exit code 127 without output says that there is
no such command and 124 that it did not end in time, as a shell and timeout(1) say it. Unknown keys are left alone, so
that later versions may add some.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.redaction import Redaction
from homenode.host.topology.source import VARIABLES, CommandResult, RecordedSource, RecordingSource, Source
from homenode.units import format_count

FORMAT = "homenode-host/1"
_MOST_BYTES = 64 << 20
_MOST_FILES = 1 << 20  # 16384 CPUs with some thirty files each are half of that
_MOST_COMMANDS = 4096
_LONGEST_PATH = 4096
_NO_SUCH_COMMAND, _OUT_OF_TIME = 127, 124
_MACHINE = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_THING = re.compile(
    r"(?:cpu|node|index)?\d+|hugepages-\d+kB|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|(?:card|renderD)\d+"
)
_DIGITS = re.compile(r"(\d+)")


def load_recording(path: str | os.PathLike[str]) -> RecordedSource:
    """The machine recorded in a file. Raises UserError, naming file and fault, when it cannot be read or is no recorded
    host."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the recorded host {name}: {_reason(error)}", param="--from") from error
    if len(data) > _MOST_BYTES:
        raise _error(name, f"it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        raw = json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise _error(name, "its JSON is nested too deeply") from error
    except ValueError as error:
        raise _error(name, f"it is not JSON in UTF-8 ({error})") from error
    return parse_recording(raw, name)


def parse_recording(raw: object, name: str = "recording") -> RecordedSource:
    """The machine in the parsed JSON of a recording; `name` is what errors call it. Raises UserError when it is no
    recorded host."""
    if not isinstance(raw, dict):
        raise _error(name, f"it holds {_kind(raw)}, not an object")
    if raw.get("format") != FORMAT:
        raise _error(name, f'its "format" is {_shown(raw.get("format"))}, wanted "{FORMAT}"')
    machine = raw.get("machine")
    if not isinstance(machine, str) or not _MACHINE.fullmatch(machine):
        raise _error(name, f'its "machine" is {_shown(machine)}, wanted what `uname -m` prints, such as "aarch64"')
    env = _texts(name, "env", raw.get("env", {}), _MOST_COMMANDS)
    files = _texts(name, "files", raw.get("files"), _MOST_FILES)
    for path in files:
        if not path.startswith("/") or "\0" in path or len(path) > _LONGEST_PATH:
            raise _error(name, f'"files" has the path {_shown(path)}, wanted an absolute one')
    commands = _mapping(name, "commands", raw.get("commands", {}), _MOST_COMMANDS)
    return RecordedSource(
        machine,
        files,
        {words: _result(name, words, value) for words, value in commands.items()},
        {variable: value for variable, value in env.items() if variable in VARIABLES},
    )


def record(source: Source, read: Callable[[Source], object] = read_host, about: str = "") -> dict[str, Any]:
    """Return what `read` takes from a source, as the JSON form of a recording. Nothing private is in it:
    see redaction.
    """
    recorder = RecordingSource(source)
    read(recorder)
    redaction = Redaction()
    files = redaction.files({**_named_things(recorder), **recorder.files})
    commands = {words: _raw_result(words, result, redaction) for words, result in recorder.commands.items()}
    return {
        "format": FORMAT,
        "machine": source.machine,
        **({"about": about} if about else {}),
        "env": {name: redaction.variable(value) for name, value in source.env.items()},
        "files": files,
        "commands": commands,
    }


def save_recording(path: str | os.PathLike[str], source: Source, about: str = "") -> dict[str, Any]:
    """Record a machine into a file and return what was written. Raises UserError when the file cannot be written."""
    recording = record(source, about=about)
    write_recording(path, recording)
    return recording


def write_recording(path: str | os.PathLike[str], recording: Mapping[str, Any]) -> None:
    """Write a recording: one fact a line, in the order people count in, all of it or nothing. Raises UserError when it
    cannot be written."""
    target = Path(path)
    text = recording_text(recording)
    try:
        if target.exists() and not target.is_file():  # a pipe or /dev/stdout cannot be replaced, only written to
            target.write_text(text, encoding="utf-8")
            return
        target = target.resolve()
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead in a circle, until Python 3.13
        raise UserError(f"cannot write the recorded host {path}: {_reason(error)}") from error


def recording_text(recording: Mapping[str, Any]) -> str:
    """The text of a recording's file."""
    parts = []
    for key, value in recording.items():
        if not isinstance(value, Mapping) or not value:
            parts.append(f"{_json(key)}: {_json(value)}")
            continue
        lines = ",\n".join(f"  {_json(name)}: {_json(value[name])}" for name in sorted(value, key=_counting_order))
        parts.append(f"{_json(key)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _counting_order(text: str) -> list[tuple[int, str]]:
    """cpu2 before cpu10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(text)]


def _named_things(recorder: RecordingSource) -> dict[str, str]:
    """Empty files for CPUs, nodes, devices and interrupts of which only the name was looked at, so that a listing shows
    them again."""
    read = {folder for path in recorder.files for folder in _above(path)}
    found = {}
    for folder, names in recorder.folders.items():
        for name in names:
            path = f"{folder}/{name}"
            if _THING.fullmatch(name) and path not in read and path not in recorder.files:
                found[path] = ""
    return found


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _raw_result(words: str, result: CommandResult, redaction: Redaction) -> object:
    if result.failure == "timeout":
        return {"out": "", "rc": _OUT_OF_TIME}
    text = redaction.output(words, result.out)
    if not result.rc:
        return text
    return {"out": text, "rc": result.rc, **({"err": redaction.output(words, result.err)} if result.err else {})}


def _result(name: str, words: str, value: object) -> CommandResult:
    if isinstance(value, str):
        return CommandResult(_text(name, f"the output of {_shown(words)}", value))
    if not isinstance(value, dict) or not isinstance(value.get("out", ""), str):
        raise _error(
            name,
            f'"commands" has for {_shown(words)} {_kind(value)}, wanted the output or {{"out": output, "rc": exit '
            f"code}}",
        )
    rc = value.get("rc", 0)
    if not isinstance(rc, int) or isinstance(rc, bool) or abs(rc) > 0xFFFF_FFFF:
        raise _error(name, f"the exit code of {_shown(words)} is {_shown(rc)}, wanted a whole number")
    out = _text(name, f"the output of {_shown(words)}", value.get("out", ""))
    err = _text(name, f"the standard error of {_shown(words)}", value.get("err", ""))
    if rc == _NO_SUCH_COMMAND and not out.strip() and not err.strip():
        return CommandResult("", rc, "missing")
    if rc == _OUT_OF_TIME:
        return CommandResult("", rc, "timeout")
    return CommandResult(out, rc, "failed", err) if rc else CommandResult(out)


def _texts(name: str, key: str, raw: object, limit: int) -> dict[str, str]:
    for word, text in (found := _mapping(name, key, raw, limit)).items():
        _text(name, f"{_shown(word)} in {_shown(key)}", text)
    return found


def _mapping(name: str, key: str, raw: object, limit: int) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _error(
            name, f'it has no object "{key}"' if raw is None else f'its "{key}" is {_kind(raw)}, not an object'
        )
    if len(raw) > limit:
        raise _error(name, f'its "{key}" has {format_count(len(raw), "entry", "entries")}, wanted at most {limit}')
    for word in raw:
        _text(name, f"a name in {_shown(key)}", word)
    return raw


def _text(name: str, what: str, value: object) -> str:
    """`value` as text that can be printed: JSON can hold half a surrogate pair, which no encoding can."""
    if not isinstance(value, str):
        raise _error(name, f"{what} is {_kind(value)}, not a text")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _error(name, f"{what} holds half a surrogate pair")
    return value


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _error(name: str, fault: str) -> UserError:
    return UserError(f"{name} is no recorded host: {fault}. `homenode host record FILE` makes one.", param="--from")


def _kind(value: object) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "null")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
