"""The process that a tower computes in: all of it stays on the CPUs of the encoder, and behind the text model."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from homenode.compute.ops import Backend
from homenode.engine.encoder import picture_tower, process
from homenode.model.media.prepared import array_bytes, array_words
from homenode.model.pictures.reader import family_words
from homenode.model.sandbox.process import SandboxProcess
from tests.model.test_picture_towers import TOWERS, RandomTensors, described, made, pictures

pytest.importorskip("homenode.compute.native")
pytest.importorskip("PIL.Image")
NAME, FAMILY = "MiniCPMV", "minicpm_v"  # in whose towers NumPy computes attention


def test_numpy_has_no_threads_besides() -> None:
    """NumPy is imported before the process says that it is ready, and before that is behind others."""
    own = SandboxProcess(process.__name__)
    try:
        own.wait_ready()
        pid = own.pid
        assert "numpy" in Path(f"/proc/{pid}/maps").read_text()
        assert [task.name for task in Path(f"/proc/{pid}/task").iterdir()] == [str(pid)]
    finally:
        own.end()


@pytest.mark.parametrize("bound", [True, False])
def test_what_numpy_computes_stays_on_the_cpus_of_the_encoder(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_tower, "tower_tensors", tensors)
    monkeypatch.setattr(picture_tower, "tower_digest", lambda *given: b"digest")
    allowed = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    def compute() -> None:
        told = {"words": family_words(FAMILY, described(NAME)), "model": "", "isa": None, "storage": None}
        work = process._Work({**told, "medium": "image", "cpus": [max(allowed) if bound else -1]})
        family = work.tower.family
        encode = family.encode
        monkeypatch.setattr(family, "encode", lambda *given: (encode(*given), seen.append(os.sched_getaffinity(0)))[0])
        prepared = made(NAME).prepare(next(pictures()), True)
        request = {"arrays": array_words(prepared.tiles), "layout": prepared.layout}
        _, *rows = work.answer(request, array_bytes(prepared.tiles))
        assert len(b"".join(rows))

    thread = threading.Thread(target=compute)  # which alone is bound
    thread.start()
    thread.join()
    assert seen == [{max(allowed)} if bound else allowed] and os.sched_getaffinity(0) == allowed


def tensors(backend: Backend, *_: Any) -> RandomTensors:
    return RandomTensors(backend, TOWERS[NAME][3])
