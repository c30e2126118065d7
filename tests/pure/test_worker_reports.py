"""Figures that workers tell: what those of several come to, on the way to the engine, and who hears of them."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from homenode.engine.channels.messages import Fits, FromWorker
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerReport, merge_reports
from homenode.errors import PeerError
from homenode.model.identity import ModelIdentity
from homenode.net.message_frames import decode_body, encode_frame
from tests.pure.schedule_bench import Bench, limits_of

STAGES = (  # of a model whose first stage keeps no state
    Fits(num_blocks=9, state_slots=0, tile_tokens=1, weight_bytes=100, shared_weight_bytes=7),
    Fits(num_blocks=7, state_slots=5, tile_tokens=6, weight_bytes=30, notes=("a note",)),
    Fits(num_blocks=8, state_slots=4, tile_tokens=2, weight_bytes=1, identity=ModelIdentity("w", {}, "")),
)


def test_figures_of_several_workers() -> None:
    """Blocks are where every worker has room for them, slots where every worker that has any does; a step that is cut
    to the tiles of one worker costs others no more than it does in pieces of any size; bytes are added up.
    """
    assert merge_reports(STAGES) == {
        "num_blocks": 7,
        "state_slots": 4,
        "tile_tokens": 6,
        "weight_bytes": 131,
        "shared_weight_bytes": 7,
    }
    assert merge_reports(STAGES[:1])["state_slots"] == 0


def test_each_figure_says_what_several_come_to() -> None:
    hints = get_type_hints(WorkerReport, include_extras=True)
    assert tuple(hints) == WorkerReport.__struct_fields__
    assert all(callable(getattr(hint, "__metadata__", (None,))[0]) for hint in hints.values())


def test_all_of_them_are_limits_of_the_engine() -> None:
    told = merge_reports(STAGES)
    limits = msgspec.structs.replace(limits_of(), **told)
    assert {name: getattr(limits, name) for name in told} == told


@pytest.mark.parametrize("fits", STAGES)
def test_what_a_worker_tells_crosses_whole(fits: Fits) -> None:
    assert decode_body(encode_frame(fits)[4:], FromWorker) == fits


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"num_blocks": "7"},
        {"num_blocks": 7, "tile_tokens": 1.5},
        {"num_blocks": 7, "state_slots": [4]},
        {"num_blocks": 7, "notes": [1]},
    ],
)
def test_what_is_no_figure_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(PeerError, match="no message"):
        decode_body(msgspec.msgpack.encode({"type": "Fits", **told}), FromWorker)


def test_a_scheduler_fills_the_tiles_that_its_workers_told() -> None:
    """A millisecond a token, and a stream: of the 150 tokens that a step has time for it takes four tiles of 32, where
    without it would take the piece of a prompt that ends at a multiple of 16.
    """
    room = msgspec.structs.replace(limits_of(num_blocks=200, block_size=16, max_model_len=3000), tile_tokens=32)
    bench = Bench(SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=8), limits=room, token_s=0.001)
    bench.submit([1] * 16, max_tokens=400, ignore_eos=True)
    for _ in range(4):
        bench.fill()
        bench.finish_step()
    bench.submit([2] * 1000, max_tokens=1)
    tokens = []
    for _ in range(6):
        bench.fill()
        tokens.append(bench.steps[-1].num_tokens)
        bench.finish_step()
    assert tokens[4:] == [128, 128], tokens
    bench.run()
