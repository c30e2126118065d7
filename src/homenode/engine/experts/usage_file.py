"""The file of --expert-counts: how often each expert was chosen, added up over runs and engines, for --expert-placement
to read.

Whoever adds takes turns (flock(2) on the file's folder) and puts a new file in the place of the old one: a reader sees
one or the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from homenode.engine.experts.usage import Table, empty
from homenode.errors import HostError, UserError
from homenode.model.formats.expert_counts import read_counts
from homenode.model.part import every_expert
from homenode.model.spec import ModelSpec

_AGAIN_S = 0.02


def counts_problem(setting: str | None, spec: ModelSpec) -> UserError | None:
    """Return why counts of this model cannot be added to that file, if so."""
    if setting is None:
        return None
    path = Path(setting).expanduser()
    try:
        if spec.moe is None:
            raise UserError(f"a {spec.architecture} model has no experts to count; leave it out")
        if path.is_file():
            read_counts(path, spec)
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            raise UserError(f"{setting} cannot be written; name a file in a folder that is there and may be written to")
    except UserError as error:
        return UserError(f"--expert-counts: {error.message}", param="expert_counts")
    return None


def add_counts(path: Path, more: Table, spec: ModelSpec, patience_s: float) -> bool:
    """Add to the file; whether it was this process's turn within `patience_s` seconds. HostError when the file cannot
    be written, UserError when what is there is no such file.
    """
    try:
        with _turn(path.parent, patience_s) as ours:
            if ours:
                before = read_counts(path, spec) if path.exists() else ()
                _put(path, _lists(more, before, spec))
            return ours
    except OSError as error:
        raise HostError(f"--expert-counts: {path} could not be written: {error.strerror}", errno=error.errno) from error


def _lists(more: Table, before: tuple[tuple[float, ...], ...], spec: ModelSpec) -> list[list[float]]:
    sums = empty(spec.num_layers, spec).astype(np.float64) + more
    lines = [sums[layer].tolist() if every_expert(spec, layer) else [] for layer in range(spec.num_layers)]
    for line, old in zip(lines, before, strict=False):
        line[:] = [count + kept for count, kept in zip(line, old, strict=False)]
    return [[int(count) if count.is_integer() else count for count in line] for line in lines]


def _put(path: Path, lines: list[list[float]]) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as new:
        try:
            new.write(msgspec.json.encode(lines))
            new.flush()
            os.fchmod(new.fileno(), 0o644)
            Path(new.name).replace(path)
        except OSError:
            Path(new.name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _turn(folder: Path, patience_s: float) -> Iterator[bool]:
    """Yield whether nobody else adds to a file of this folder until the end; False when it took too long to
    find out.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _locked(descriptor, time.monotonic() + patience_s)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_AGAIN_S)
