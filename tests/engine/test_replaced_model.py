"""A model whose files are replaced by those of another one of the same shape, in the same place and with the same time:
while it is served, and while it starts. No answer is ever that of a mixture.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode import LLM
from homenode.engine.runtime import build
from homenode.errors import CheckpointError
from tests.engine.live import BUILTIN, LiveServer, workers
from tests.waiting import PATIENCE_S, wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(not BUILTIN.is_file(), reason="there is no built-in model")]
ASK = {"prompt": "Once upon a time there was a", "max_tokens": 16, "temperature": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUILTIN.parent, tmp_path / "model"))


def replace_weights(folder: Path) -> None:
    """The signs of a third of each layer's last matrices turn; all else is as it was."""
    file = folder / "model.safetensors"
    data, stamp = bytearray(file.read_bytes()), file.stat()
    (size,) = struct.unpack_from("<Q", data)
    for name, info in json.loads(data[8 : 8 + size]).items():
        if "down_proj" in name or "o_proj" in name:
            begin, end = (8 + size + at for at in info["data_offsets"])
            width = 4 if info["dtype"] == "F32" else 2
            for at in range(begin + width - 1, begin + (end - begin) // 3, width):
                data[at] ^= 0x80
    file.with_suffix(".new").write_bytes(data)
    os.utime(file.with_suffix(".new"), ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    file.with_suffix(".new").rename(file)


def replace_figures(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))


CHANGES = {"model.safetensors holds other weights": replace_weights, "config.json": replace_figures}


def answers(server: LiveServer) -> Iterator[str]:
    """What it says until it has ended."""
    while server.process.poll() is None:
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{server.url}/v1/completions", json=ASK, timeout=PATIENCE_S)
            if answer.status_code == 200:
                yield answer.json()["choices"][0]["text"]


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--pipeline-parallel-size"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_worker_that_is_started_again(folder: Path, flag: str, change: str) -> None:
    server = LiveServer(flag, "2", "--kv-cache-memory", "4MiB", "--no-enable-prefix-caching", model=folder)
    try:
        first = next(answers(server))
        CHANGES[change](folder)
        os.kill(workers(server)["homenode-worker-1"], signal.SIGKILL)
        assert set(answers(server)) <= {first}
    finally:
        code, log = server.close(), b"".join(server.log).decode()
    assert code == 1 and change in log and str(folder) in log and "Traceback" not in log, log[-3000:]


def test_one_of_several_engines_that_is_started_again(folder: Path) -> None:
    server = LiveServer("--data-parallel-size", "2", "--api-server-count", "1", "--threads", "1", model=folder)
    try:
        first = next(answers(server))
        replace_weights(folder)
        os.kill(server.engines()[0], signal.SIGKILL)
        wait_until(lambda: b"holds other weights" in b"".join(server.log))
        said = answers(server)
        assert {next(said) for _ in range(4)} == {first}
    finally:
        code, log = server.close(), b"".join(server.log).decode()
    assert code == 0 and "engine 0 is gone" in log and "Traceback" not in log, log[-3000:]


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, replace_weights),
        ({}, replace_figures),
        ({"tensor_parallel_size": 2}, replace_figures),
        ({"pipeline_parallel_size": 2}, replace_figures),
    ],
)
def test_a_start_that_reads_before_and_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], change: Callable[[Path], None]
) -> None:
    """The engine has read headers and figures, and its workers have not begun: they may all read other weights of the
    same shapes, but not with figures of another model.
    """
    plan_engine = build.plan_engine

    def replaced_meanwhile(*given: Any) -> Any:
        planned = plan_engine(*given)
        change(folder)
        os.utime(folder / "model.safetensors", ns=(1, 1))
        monkeypatch.setattr(build, "plan_engine", plan_engine)
        return planned

    monkeypatch.setattr(build, "plan_engine", replaced_meanwhile)
    with pytest.raises(CheckpointError, match=r"was replaced or written|has read another model"):
        LLM(str(folder), kv_cache_memory="4MiB", threads=1, **settings)
