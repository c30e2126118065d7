"""Prefill and decode apart give the tokens of one engine, whatever the shapes of the two engines: a matrix of shapes
and modes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.engine.live import LiveServer
from tests.engine.transfer_pair import MODES, Live, Pair, prompts, tokens_of
from tests.paths import STORIES_MIXTURE
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(not LiveServer.possible(), reason="needs a model")]

PROMPTS = prompts(10)
MEMORY = ("--kv-cache-memory", "16MiB")


@dataclass(frozen=True)
class Shape:
    """Flags of both engines, which change what is computed, and of each, which do not. `mixture`: the model has
    experts.
    """

    both: tuple[str, ...] = ()
    sender: tuple[str, ...] = ()
    receiver: tuple[str, ...] = ()
    mixture: bool = False


SHAPES = {  # several engines at the receiver want a proxy that chooses one: test_live_transfer_engines.py
    "one worker each": Shape(),
    "ranks at the sender": Shape(sender=("--tensor-parallel-size", "2")),
    "ranks at the receiver": Shape(receiver=("--tensor-parallel-size", "2")),
    "stages and ranks": Shape(sender=("--pipeline-parallel-size", "2"), receiver=("--tensor-parallel-size", "2")),
    "engines at the sender": Shape(sender=("--data-parallel-size", "2")),
    "prompts in chunks": Shape(sender=("--max-num-batched-tokens", "16"), receiver=("--max-num-batched-tokens", "48")),
    "larger pages at the receiver": Shape(sender=("--block-size", "32"), receiver=("--block-size", "64")),
    "larger pages at the sender": Shape(sender=("--block-size", "128"), receiver=("--block-size", "32")),
    "KV of 8 bits, in chunks": Shape(("--kv-cache-dtype", "int8"), sender=("--max-num-batched-tokens", "16")),
    "experts": Shape(mixture=True),
    "experts on ranks, in chunks": Shape(
        sender=("--tensor-parallel-size", "2"), receiver=("--max-num-batched-tokens", "16"), mixture=True
    ),
}
# Those that other tests of every run do not have; the rest of the matrix takes minutes.
IN_EVERY_RUN = {("KV of 8 bits, in chunks", "push"), ("experts on ranks, in chunks", "pull-eager")}
MATRIX = [
    pytest.param(shape, mode, marks=() if (shape, mode) in IN_EVERY_RUN else pytest.mark.slow)
    for shape in SHAPES
    for mode in MODES
]


@pytest.mark.parametrize(("name", "mode"), MATRIX)
def test_a_pair_says_what_one_engine_says(name: str, mode: str) -> None:
    shape = SHAPES[name]
    if shape.mixture and not STORIES_MIXTURE.is_dir():
        pytest.skip("needs the data folder ../shared/data, which this clone does not have")
    model = STORIES_MIXTURE if shape.mixture else None
    alone = Live(*MEMORY, *shape.both, model=model)
    wanted = [tokens_of(alone.complete(prompt)) for prompt in PROMPTS]
    assert alone.close() == 0
    own = {"sender": (*MEMORY, *shape.sender), "receiver": (*MEMORY, *shape.receiver)}
    with Pair(mode, both=shape.both, model=model, **own) as pair:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == wanted
        assert pair.receiver.metric("bytes_total") > 0
        assert pair.receiver.metric("digest_mismatches_total") == 0
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]
