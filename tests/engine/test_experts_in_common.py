"""Engines that keep the experts of a mixture once for all of them: the text of one engine, whatever becomes of any; and
the memory of one copy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.request import Request
from homenode.engine.router.client import ReplicasClient
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.errors import CapacityError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.weights.load import plan_model
from homenode.model.weights.model_files import ModelFiles
from homenode.model.weights.weights_identity import read_identity
from tests.checkpoints import make_folder
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.engine.test_client import collect
from tests.engine.test_golden import golden
from tests.paths import ROOT, STORIES_MIXTURE, needs_data
from tests.waiting import PATIENCE_S, wait_in_loop

pytest.importorskip("homenode._native", reason="needs the compiled core")

QUICK = RestartPolicy(first_delay_s=0.01, longest_delay_s=0.05)
TIGHT: dict[str, Any] = {"kv_cache_memory": "384KiB", "max_model_len": 256, "max_num_batched_tokens": 48, "threads": 1}
PROMPTS = [[1, 5, 9, 40 + n] for n in range(4)]


def engines_of(model: Path, count: int, **settings: Any) -> list[EngineAssignment]:
    config = config_for(model, **{"enable_expert_parallel": True, "stage_devices": "cpu", **TIGHT, **settings})
    return [EngineAssignment(config, Replica(number, count, EngineBinding((UNPINNED,)))) for number in range(count)]


def using(
    configs: Sequence[EngineAssignment],
    use: Callable[[ReplicasClient], Awaitable[None]],
    program: str = "homenode.engine.runtime.process",
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(2 * PATIENCE_S),
            ReplicasClient(configs, restart_policy=QUICK, program=program) as client,
        ):
            await use(client)

    asyncio.run(run())


async def texts(client: ReplicasClient, prompts: Sequence[list[int]], count: int, first_id: int = 1) -> list[list[int]]:
    """The tokens of all prompts, asked together."""
    asked = [Request(id=first_id + n, prompt_ids=prompt, params=greedy(count)) for n, prompt in enumerate(prompts)]
    found = await asyncio.gather(*(collect(client.submit(one)) for one in asked))
    assert all(outputs[-1].error is None for outputs in found)
    return [tokens_of(outputs) for outputs in found]


def of_one_engine(model: Path, count: int) -> list[list[int]]:
    """What an engine with all experts says to the prompts."""
    engine = LocalEngine(config_for(model, stage_devices="cpu", threads=1, kv_cache_memory="2MiB"))
    try:
        return [tokens_of(outputs) for outputs in run_all(engine, PROMPTS, [greedy(count)] * len(PROMPTS))]
    finally:
        engine.close()


def tree(pid: int) -> list[int]:
    """A process and its children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(int(child) for task in tasks for child in (task / "children").read_text().split())]


def mapped(pids: Sequence[int], figure: str) -> int:
    """Bytes of the memory for experts in these processes' maps, as the kernel counts them under this name."""
    found, ours = 0, False
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if not line.split(maxsplit=1)[0].endswith(":"):
                ours = "memfd:homenode experts" in line
            elif ours and line.startswith(f"{figure}:"):
                found += 1024 * int(line.split()[1])
    return found


SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "two engines": (2, {}),
    "three engines, four experts": (3, {}),
    "two engines of two ranks": (2, {"tensor_parallel_size": 2, "stage_devices": "cpu,cpu"}),
    "two engines of two stages": (2, {"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu"}),
}


@needs_data
@pytest.mark.parametrize("shape", SHAPES)
def test_golden_text_under_memory_pressure_with_experts_once(shape: str) -> None:
    count, settings = SHAPES[shape]
    entries = golden() * 3
    weights = bytes_of(STORIES_MIXTURE)

    async def use(client: ReplicasClient) -> None:
        found = await texts(client, [entry["prompt_ids"] for entry in entries], 120)
        assert found == [entry["greedy_ids"][:120] for entry in entries]
        details: dict[str, Any] = client.ready.details
        assert not [note for note in details["notes"] if "experts" in note]
        # The experts once, the rest in every engine, some of it (norms, a tied output matrix) with every worker.
        rest = count * weights["rest"]
        assert (
            weights["experts"] + rest <= details["weight_bytes"] <= weights["experts"] + rest * (2 if settings else 1)
        )
        assert details["shared_weight_bytes"] == (count - 1) * weights["experts"]
        await wait_in_loop(
            lambda: all(engine.statistics.compute.get("shared_weight_bytes") for engine in client.engines)
        )
        seen: list[dict[str, Any]] = [engine.statistics.compute for engine in client.engines]
        assert sum(each["shared_weight_bytes"] for each in seen) >= (count - 1) * weights["experts"]
        kept = sum(each["weight_bytes"] for each in seen)
        assert kept < 1.3 * (weights["experts"] + rest * (2 if settings else 1)), "groups of rows are filled up"
        pids = [pid for engine in client.pids if engine is not None for pid in tree(engine)]
        once, all_maps = mapped(pids, "Pss"), mapped(pids, "Rss")
        assert once <= sum(os.fstat(memory).st_blocks * 512 for memory in client.expert_files.descriptors())
        assert once >= weights["experts"] and all_maps == pytest.approx(count * once, rel=0.1), (
            "every engine has all of them in its maps"
        )

    using(engines_of(STORIES_MIXTURE, count, **settings), use)


def bytes_of(model: Path) -> dict[str, int]:
    from homenode.compute.native import NativeBackend

    layout = plan_model(open_checkpoint(model), NativeBackend((UNPINNED,)))
    experts = sum(m.target_bytes for m in layout.matrices if ".experts." in m.name)
    return {"experts": experts, "rest": layout.target_bytes - experts}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", "mixtral")


def test_a_lost_engine_comes_back_without_reading_its_experts(model: Path) -> None:
    """What the files say of experts is spoilt meanwhile: whoever read it again would say something else."""
    wanted = of_one_engine(model, 40)

    async def use(client: ReplicasClient) -> None:
        assert await texts(client, PROMPTS * 2, 40) == wanted * 2
        spoil_experts(model)
        for victim in (0, 1):
            streams = [
                client.submit(Request(id=100 * victim + n + 50, prompt_ids=p, params=greedy(200)))
                for n, p in enumerate(PROMPTS * 2)
            ]
            firsts = [await anext(stream) for stream in streams]
            os.kill(client.pids[victim] or 0, signal.SIGKILL)
            found = [[first, *(await collect(stream))] for first, stream in zip(firsts, streams, strict=True)]
            assert all(outputs[-1].error is None for outputs in found)
            assert [tokens_of(outputs)[:40] for outputs in found] == wanted * 2
            await wait_in_loop(
                lambda victim=victim: client.engines[victim].restarts == 1 and client.engines[victim].state == "ready"
            )
            assert await texts(client, PROMPTS * 2, 40, 100 * victim + 70) == wanted * 2
            assert min(engine.statistics.generation_tokens for engine in client.engines) > 0

    using(engines_of(model, 2, kv_cache_memory="2MiB"), use)


def sampled_bytes(model: Path) -> set[int]:
    """Places in the file that the identity of the model is made of."""
    found: set[int] = set()
    pread = os.pread

    def read(fd: int, size: int, offset: int) -> bytes:
        found.update(range(offset, offset + size))
        return pread(fd, size, offset)

    with mock.patch("os.pread", read), ModelFiles() as files:
        read_identity(open_checkpoint(model), files.open)
    return found


def spoil_experts(model: Path) -> None:
    """Other bytes in place of the experts, but for samples: by its size, times and identity the file is what it was."""
    path = model / "model.safetensors"
    kept = sampled_bytes(model)
    before = path.stat()
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8 : 8 + header])
    for name, tensor in tensors.items():
        if ".experts." in name:
            first, past = (8 + header + offset for offset in tensor["data_offsets"])
            for place in set(range(first, past)) - kept:
                data[place] = 0
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_lost_worker_finds_its_experts_there(model: Path) -> None:
    wanted = of_one_engine(model, 40)

    async def use(client: ReplicasClient) -> None:
        assert await texts(client, PROMPTS * 2, 40) == wanted * 2
        spoil_experts(model)
        engine = client.pids[0] or 0
        before = tree(engine)
        os.kill(before[1], signal.SIGKILL)
        await wait_in_loop(lambda: len(tree(engine)) == len(before) and before[1] not in tree(engine))
        assert await texts(client, PROMPTS * 2, 40, 50) == wanted * 2
        assert [each.restarts for each in client.engines] == [0, 0]

    using(engines_of(model, 2, tensor_parallel_size=2, stage_devices="cpu,cpu", kv_cache_memory="2MiB"), use)


def test_an_engine_killed_while_it_loads_is_waited_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = of_one_engine(model, 40)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    (model / "dies-1").write_text("1")

    async def use(client: ReplicasClient) -> None:
        assert [engine.restarts for engine in client.engines] == [0, 1]
        assert await texts(client, PROMPTS * 2, 40) == wanted * 2

    using(engines_of(model, 2), use, "tests.engine.mortal_engine")


def test_an_engine_that_cannot_start_is_waited_for_by_nobody(model: Path) -> None:
    """The other one waits for its share, and is ended; what is told is why that one could not start."""
    first, second = engines_of(model, 2)
    small = second.config
    second = replace(second, config=replace(small, kv=replace(small.kv, kv_cache_memory=1)))

    async def nothing(client: ReplicasClient) -> None:
        raise AssertionError("it started")

    begin = time.monotonic()
    with pytest.raises(CapacityError, match="--kv-cache-memory"):
        using([first, second], nothing)
    assert time.monotonic() - begin < PATIENCE_S


def test_engines_of_other_models_do_not_come_together(model: Path, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "other", "mixtral", seed=1)

    async def nothing(client: ReplicasClient) -> None:
        raise AssertionError("they started")

    with pytest.raises(UserError, match="model"):
        using([engines_of(model, 2)[0], engines_of(other, 2)[1]], nothing)
