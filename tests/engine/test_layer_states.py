"""A model whose layers keep a state beside keys and values, in whole engines: the same bits whatever happens around a
request.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.native.backend import NativeBackend
from homenode.compute.ops import FloatArray, KvGeometry
from homenode.engine.api.local import LocalEngine
from homenode.engine.config import EngineConfig, TransferConfig
from homenode.engine.memory.state_sizing import state_handover_problem, state_pages
from homenode.engine.messages import StateStats
from homenode.engine.worker.state_pages import StatePages
from homenode.errors import HomenodeError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import ModelSpec, StateMixer
from homenode.model.state import state_geometry_of
from homenode.model.state_mixers import ConvolutionSpec, ScanSpec, with_mixer
from tests.engine.answer_drafts import draft_answers
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.engine.state_engines import Bits, bits_alone, bits_of, engine_of, prompts_of, put_nan_in_every_slot
from tests.model.test_delta_net import CASES
from tests.model.transformers_models import make_model, quiet_and_on_one_thread
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

LENGTHS = (1, 2, 31, 32, 33, 64, 65, 100)
PROMPTS = prompts_of(LENGTHS)
PARAMS = greedy(40, logprobs=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case, folder = CASES["qwen3_next"], tmp_path_factory.mktemp("states") / "model"
    with quiet_and_on_one_thread():
        make_model(case.kind, case.changes, folder, seed=case.seed)
    return folder


@pytest.fixture(autouse=True)
def not_a_number_in_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    put_nan_in_every_slot(monkeypatch)


def _engine(folder: Path, **settings: Any) -> LocalEngine:
    return engine_of(folder, **({"max_model_len": 160} | settings))


def _at_rest(engine: LocalEngine, tokens: int) -> StateStats:
    """What is told of the state memory when so many tokens were drawn and nobody runs any more."""

    def states_at_rest() -> StateStats | None:
        now = engine.statistics
        return now.states if now.generation_tokens >= tokens and now.states and not now.states.used else None

    states = wait_until(states_at_rest, lambda: engine.statistics)
    assert states is not None
    return states


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[list[Bits]]:
    """Each prompt by itself, without a prefix cache."""
    engine = _engine(folder, enable_prefix_caching=False)
    yield bits_alone(engine, PROMPTS, PARAMS)
    engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 23, "max_num_seqs": 8},
        {"state_snapshot_interval": 1},
        {"enable_prefix_caching": False},
        {"kv_cache_memory": "190KiB", "max_num_seqs": 8},
        {"threads": 2},
    ],
    ids=str,
)
def test_together_and_again_every_request_has_the_bits_it_has_alone(
    folder: Path, alone: list[Bits], settings: dict[str, Any]
) -> None:
    engine = _engine(folder, **settings)
    for turn in range(2):
        found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS), first_id=1 + turn * len(PROMPTS))
        assert [bits_of(outputs) for outputs in found] == alone
    figures = _at_rest(engine, 2 * 40 * len(PROMPTS))
    engine.close()
    assert (figures.hits > 0) == settings.get("enable_prefix_caching", True)


@pytest.mark.parametrize("settings", [{}, {"enable_prefix_caching": False}, {"threads": 2}], ids=str)
def test_states_are_cut_back_to_what_counts_of_drafts(
    folder: Path, alone: list[Bits], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = draft_answers(monkeypatch, PROMPTS, [tokens for tokens, _ in alone], 64)
    engine = _engine(folder, **settings)
    found = run_all(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    assert [bits_of(outputs) for outputs in found] == alone
    _at_rest(engine, 40 * len(PROMPTS))
    engine.close()
    assert drafts.accepted > 20 and drafts.rejected > 20


def test_conversations_branches_and_equal_prompts_have_the_bits_of_a_computation_from_the_beginning(
    folder: Path,
) -> None:
    prompts = [PROMPTS[7], [*PROMPTS[7][:50], *PROMPTS[6][:40]], [*PROMPTS[7][:64], 5], PROMPTS[7], PROMPTS[7]]
    plain, caching = _engine(folder, enable_prefix_caching=False), _engine(folder)
    expected = bits_alone(plain, prompts, PARAMS)
    for turn in range(2):
        found = run_all(caching, prompts, [PARAMS] * len(prompts), first_id=1 + 10 * turn)
        assert [bits_of(outputs) for outputs in found] == expected
    assert sum(outputs[0].cached_tokens > 0 for outputs in found) == len(prompts)
    talk = [*PROMPTS[7], *expected[0][0], 7, 8, 9]
    (first,) = run_all(plain, [talk], [greedy(10, logprobs=0)], first_id=50)
    (again,) = run_all(caching, [talk], [greedy(10, logprobs=0)], first_id=50)
    plain.close(), caching.close()
    assert bits_of(again) == bits_of(first) and again[0].cached_tokens == 128


def test_the_reference_backend_holds_states_as_well(folder: Path) -> None:
    engine = _engine(folder, backend="reference", max_num_batched_tokens=40)
    prompts = PROMPTS[2:5]
    first = [run_all(engine, [prompt], [greedy(6)], first_id=n)[0] for n, prompt in enumerate(prompts, 1)]
    again = run_all(engine, prompts, [greedy(6)] * 3, first_id=10)
    engine.close()
    assert [tokens_of(outputs) for outputs in again] == [tokens_of(outputs) for outputs in first]
    assert [outputs[0].cached_tokens for outputs in again] == [0, 0, 32]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kv_cache_memory": "20KiB"}, "and the KV memory has 20KiB; give --kv-cache-memory at least"),
    ],
)
def test_what_cannot_be_is_refused_by_name(folder: Path, settings: dict[str, Any], told: str) -> None:
    config = config_for(folder, threads=1, **({"max_model_len": 160} | settings))
    with pytest.raises(HomenodeError, match=told):
        LocalEngine(config).close()


@pytest.mark.parametrize("given", ["20KiB", "100KiB"])
def test_the_least_memory_that_is_told_suffices(folder: Path, given: str) -> None:
    """Where states take more than half of it as well; given less, the engine tells the same."""
    with pytest.raises(HomenodeError) as refused:
        _engine(folder, kv_cache_memory=given).close()
    told = re.findall(r"--kv-cache-memory at least (\S+)", refused.value.message)
    engine = _engine(folder, kv_cache_memory=told[0])
    assert len(tokens_of(run_all(engine, [PROMPTS[7]], [greedy(59)])[0])) == 59
    engine.close()


def test_the_torch_backend_holds_states_as_well(folder: Path) -> None:
    engine = _engine(folder, backend="torch", max_num_batched_tokens=40)
    prompts = PROMPTS[2:5]
    first = [run_all(engine, [prompt], [greedy(6)], first_id=n)[0] for n, prompt in enumerate(prompts, 1)]
    again = run_all(engine, prompts, [greedy(6)] * 3, first_id=10)
    engine.close()
    assert [tokens_of(outputs) for outputs in again] == [tokens_of(outputs) for outputs in first]
    assert [outputs[0].cached_tokens for outputs in again] == [0, 0, 32]


# One group of heads for all KV heads, two for each, three of which the second belongs to both; and channels alone.
_FIGURES: dict[str, Any] = {"layers": (0, 2), "head_dim": 8, "state_width": 10, "taps": 3}
MIXERS: dict[str, StateMixer] = {
    "one group": ScanSpec(heads=6, groups=1, **_FIGURES),
    "four groups": ScanSpec(heads=12, groups=4, **_FIGURES),
    "three groups": ScanSpec(heads=12, groups=3, gating="no_norm", **_FIGURES),
    "convolution": ConvolutionSpec((0, 2), 24, 2),
}


@pytest.mark.parametrize("dtype", ["f32", "int8"])
@pytest.mark.parametrize("kind", ["delta net", "interleaved delta net", *MIXERS])
def test_a_state_in_kv_blocks_is_the_same_for_one_rank_and_for_two(folder: Path, kind: str, dtype: str) -> None:
    spec = open_checkpoint(folder).spec
    assert spec.delta is not None
    if kind in MIXERS:
        spec = dataclasses.replace(spec, delta=None, layer_states=(), dimensions={})
        spec = with_mixer(spec, MIXERS[kind], (1, 3))
    else:
        delta = dataclasses.replace(spec.delta, interleaved=kind.startswith("interleaved"))
        spec = dataclasses.replace(spec, delta=delta)
    backend, found = NativeBackend([-1]), []
    for ranks in (1, 2):
        heads: list[Any] = []
        for part in plan_parts(spec, {}, PartitionSpec(ranks=ranks)):
            geometry = KvGeometry.uniform(1, part.kv_heads.count, spec.head_dim, 32, dtype)
            geometry = dataclasses.replace(geometry, state=state_geometry_of(spec, part))
            assert geometry.state is not None
            memory = backend.state_memory(geometry.state, 2)
            cache = backend.kv_cache(geometry, 40, shared=True)
            here = StatePages([backend.kv_memory(cache)], memory, geometry, spec, part)
            count = state_pages(spec, [part], [geometry])
            values = _numbered(spec, part)
            memory.write_slot(0, values)
            here.store(0, range(3, 3 + count))
            here.load(range(3, 3 + count), 1)
            assert np.array_equal(memory.read_slot(1), values)
            rows = [b"".join(backend.kv_memory(cache).pieces(block, 2)) for block in range(3, 3 + count)]
            heads += np.split(
                np.frombuffer(b"".join(rows), np.uint8).reshape(count, part.kv_heads.count, -1),
                part.kv_heads.count,
                axis=1,
            )
        found.append(np.concatenate(heads, axis=1))
    assert np.array_equal(*found)


def _numbered(spec: ModelSpec, part: ModelPart) -> FloatArray:
    """The state of a part, each value of the whole state having a number of its own."""
    channels, heads = _here(spec, part)
    found, at = [], 0
    for layer in state_geometry_of(spec).layers:  # type: ignore[union-attr]
        tail = np.arange(at, at + layer.taps * layer.channels, dtype=np.float32).reshape(layer.taps, -1)
        at += tail.size
        elements = layer.key_width * layer.value_width
        matrices = np.arange(at, at + layer.heads * elements, dtype=np.float32).reshape(layer.heads, elements)
        at += matrices.size
        found += [tail[:, channels].reshape(-1), matrices[heads].reshape(-1)]
    return np.concatenate(found)


def _here(spec: ModelSpec, part: ModelPart) -> tuple[list[int], list[int]]:
    """Which channels and which heads of the whole state a part has, in its order."""
    delta, mixer = spec.delta, spec.mixer
    groups = list(range(part.state_groups.first, part.state_groups.end))
    if delta is not None:
        keys, each = delta.key_heads, delta.value_heads // delta.key_heads
        heads = [g * each + j for g in groups for j in range(each)]
        if delta.interleaved:
            heads = [j * keys + g for j in range(each) for g in groups]
        sizes = [(groups, keys, delta.key_width)] * 2 + [(heads, delta.value_heads, delta.value_width)]
    elif isinstance(mixer, ScanSpec):
        heads, read = groups, sorted({head // mixer.per_group for head in groups})
        sizes = [(heads, mixer.heads, mixer.head_dim)] + [(read, mixer.groups, mixer.state_width)] * 2
    else:
        heads, sizes = [], [(groups, spec.state_groups, 1)]
    channels, first = [], 0
    for numbers, count, width in sizes:
        channels += [first + number * width + n for number in numbers for n in range(width)]
        first += count * width
    return channels, heads


def test_handing_over_from_a_torch_device_is_refused_by_name(folder: Path) -> None:
    spec = open_checkpoint(folder).spec
    config = EngineConfig(transfer=TransferConfig(pd_role="prefill"))
    problem = state_handover_problem(config, spec, [], [], ["cpu", "torch:cuda:0"])
    assert problem is not None and "torch:cuda:0 keeps it where no other engine reads it" in problem.message
    assert state_handover_problem(config, spec, [], [], ["cpu"]) is None
    assert state_handover_problem(EngineConfig(), spec, [], [], ["torch:cuda:0"]) is None


@pytest.mark.parametrize(
    ("mixer", "attending", "told"),
    [
        (MIXERS["one group"], (), "this model has no keys and values"),
        (ScanSpec(heads=5, groups=1, **_FIGURES), (1, 3), "5 groups of it and 2 KV heads, which do not go together"),
    ],
)
def test_states_that_do_not_go_with_kv_heads_are_refused_by_name(
    folder: Path, mixer: StateMixer, attending: tuple[int, ...], told: str
) -> None:
    spec = dataclasses.replace(open_checkpoint(folder).spec, delta=None, layer_states=(), dimensions={})
    config = EngineConfig(transfer=TransferConfig(pd_role="prefill"))
    problem = state_handover_problem(config, with_mixer(spec, mixer, attending), [], [], ["cpu"])
    assert problem is not None and told in problem.message and problem.param == "pd_role"
