"""Models cut into stages, ranks and experts answer as whole ones: every architecture, storage formats, and a real
model's golden text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.ops import EagerOps
from homenode.dtypes import BY_NAME
from homenode.errors import UserError
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.expert_placement import ExpertUse
from homenode.model.parts import PartitionSpec
from homenode.model.spec import Checkpoint, ModelSpec
from homenode.model.weights.load import load_model
from tests.checkpoints import make_folder, make_gguf, stored
from tests.model.driver import Driver, Sequence
from tests.model.split import plan, split_driver
from tests.model.test_weight_formats import random_rows
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec
from tests.paths import STORIES, STORIES_MIXTURE, needs_data

PROMPTS = [[5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61], [3, 1, 4], [60, 20, 7, 7, 9]]
RELATIVE = 1e-5  # sums over ranks are added in another order
GOLDEN_BOUND = 5e-5  # as in test_stories.py
BIASES = {"output_bias": True, "mlp_bias": True, "attention_bias": True}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": BIASES,
    "mistral": {"sliding_window": 6, "tie_word_embeddings": True},
    "mixtral": {},
    "qwen2": {"sliding_window": 5, "sliding_layers": (False, True, False), "tie_word_embeddings": True},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma2": {"sliding_layers": (True, False, True)},
    "gemma3": {"sliding_layers": (True, False, True)},
    "gemma": {"embedding_scale": 8.0},
    "gemma4": {},
    "phi3": {"sliding_window": 6},
    "olmo2": {"attention_bias": True},
    "gpt_oss": {},
    "glm4_moe": {},
    "minimax_m2": {},
    "minimax_m3": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "glm_moe_dsa": {},
    "glm4_moe_lite": {},
    "qwen3_next": {},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "starcoder2": {"sliding_window": 6} | BIASES,
    "gpt_neox": BIASES,
    "phi": BIASES,
    "falcon": {"num_kv_heads": 6},
    "gpt2": {"tie_word_embeddings": True} | BIASES,
    "gpt_bigcode": {"num_kv_heads": 1} | BIASES,
    "apertus": {},
    "gemma3n": {},
    "bloom": BIASES,
    "mpt": {"tie_word_embeddings": True},
    "nemotron": {},
    "phimoe": {"attention_bias": True, "output_bias": True},
    "stablelm": {"attention_bias": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {"tie_word_embeddings": True},
    "lfm2": {},
    "lfm3": {},
    "lfm2_moe": {},
    "granitemoehybrid": {"embedding_scale": 3.0},
    "nemotron_h": {},
    "falcon_h1": {},
    "mamba2": {},
    "bamba": {},
    "granite": {"embedding_scale": 3.0, "attention_scale": 0.2, "output_bias": True, "mlp_bias": True},
    "smollm3": {},
    "ministral3": {},
    "olmo3": {},
    "olmoe": {},
    "seed_oss": {},
    "exaone4": {},
    "ernie4_5": {},
    "hunyuan_v1_dense": {},
    "glm": {},
    "glm4": {},
    "llama4": {},
    "arcee": {},
    "jais2": BIASES,
    "hy_v3": {},
    "mellum": {},
    "mimo_v2_flash": {},
    "bailing_moe_v2": {},
    "granite_swa": {},
    "gptj": BIASES,
    "opt": {"tie_word_embeddings": True} | BIASES,
    "kimi_linear": {},
    "longcat_flash": {},
    "codegen": BIASES,
    "persimmon": BIASES,
    "dbrx": {},
    "cohere2_moe": {},
    "nanochat": {},
    "laguna": {},
    "olmo_hybrid": {},
    "flex_olmo": {},
    "cwm": {},
    "helium": {},
    "hyperclovax": {},
    "solar_open": {},
    "vaultgemma": {"sliding_layers": (True, False, True)},
    "youtu": {},
    "aria": {},
    "deepseek": {},
    "deepseek_ocr": {},
    "dots1": {},
    "afmoe": {},
    "olmo": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "ernie4_5_moe": {},
    "hunyuan_v1_moe": {},
    "exaone_moe": {},
}
MIXTURES = (
    "gemma4",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "glm4_moe",
    "minimax_m2",
    "minimax_m3",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "qwen3_next",
    "qwen3_5_moe",
    "phimoe",
    "olmoe",
    "granitemoe",
    "granitemoeshared",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "exaone_moe",
    "llama4",
    "aria",
    "deepseek",
    "deepseek_ocr",
    "dots1",
    "afmoe",
    "hy_v3",
    "mellum",
    "mimo_v2_flash",
    "flex_olmo",
    "bailing_moe_v2",
    "laguna",
    "solar_open",
    "kimi_linear",
    "longcat_flash",
    "cohere2_moe",
    "dbrx",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
)


def name(how: PartitionSpec) -> str:
    whole = f"-experts-{how.placement if isinstance(how.placement, str) else 'counted'}" if how.experts_whole else ""
    return f"stages{how.stages}-ranks{how.ranks}{whole}"


# A stage for each layer, of uneven ranks: every family. The others find faults of cutting as such.
SPLITS = [
    PartitionSpec(stages=3, ranks=3),
]
MORE_SPLITS = [
    PartitionSpec(ranks=3),
    PartitionSpec(stages=3, ranks=2),
    PartitionSpec(stages=3),
    PartitionSpec(stages=2, ranks=2, layers=(1, 2)),
    PartitionSpec(ranks=2),
    PartitionSpec(ranks=6),
    PartitionSpec(stages=2),
]
EXPERT_SPLITS = [
    PartitionSpec(ranks=3, experts_whole=True, placement="packed"),
]
MORE_EXPERT_SPLITS = [
    PartitionSpec(ranks=2, experts_whole=True),
    PartitionSpec(stages=2, ranks=2, experts_whole=True, placement="packed"),
]
# One family of each way in which parts of models differ: these are cut in all ways, the others in `make test-all` only.
KINDS = {
    "llama", "gemma4", "falcon", "cohere", "mixtral", "gpt_oss", "llama4", "deepseek_v3", "minimax_m3", "qwen3_next",
    "falcon_h1", "nemotron_h",
}  # fmt: skip


def cuts(architectures: Iterable[str], usual: list[PartitionSpec], more: list[PartitionSpec]) -> list[Any]:
    """Pairs of an architecture and a way to cut it; what `KINDS` and `usual` lack is slow."""
    return [
        pytest.param(
            each, how, marks=() if how in usual or each in KINDS else pytest.mark.slow, id=f"{each}-{name(how)}"
        )
        for each in architectures
        for how in (*usual, *more)
    ]


@dataclass(frozen=True)
class Answered:
    """A toy, and what it answers as a whole."""

    checkpoint: Checkpoint
    sequences: list[Sequence]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Answered]:
    """The toy of an architecture, made and asked once: one worker computes what it did before there were several, and
    asks nothing of others.
    """

    @cache
    def asked(architecture: str) -> Answered:
        checkpoint = toy(tmp_path_factory.mktemp("toy") / "weights", architecture)
        with nobody_answers():
            return Answered(checkpoint, generated(whole_driver(checkpoint)))

    return asked


@contextmanager
def nobody_answers() -> Iterator[None]:
    """Whoever asks other workers for something fails."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("there is nobody")

    with pytest.MonkeyPatch.context() as patch:
        for asked in ("received", "sum", "gather"):
            patch.setattr(EagerOps, asked, refuse)
        yield


def toy(path: Path, architecture: str) -> Checkpoint:
    spec = three_layers(architecture)
    return array_checkpoint(path, spec, toy_arrays(spec))


def three_layers(architecture: str) -> ModelSpec:
    return toy_spec(architecture, num_layers=3, **ARCHITECTURES.get(architecture, {}))


def whole_driver(checkpoint: Checkpoint, **settings: Any) -> Driver:
    backend = ReferenceBackend()
    return Driver(load_model(checkpoint, backend, **settings), backend, kv_dtype="f32")


def generated(driver: Driver) -> list[Sequence]:
    return driver.generate(PROMPTS, 6, chunk=4, stagger=2)


def check_same(checkpoint: Checkpoint, how: PartitionSpec, **settings: Any) -> None:
    """In parts as whole; `settings` are of `load_model`."""
    check_parts(checkpoint, how, generated(whole_driver(checkpoint, **settings)), **settings)


def check_parts(checkpoint: Checkpoint, how: PartitionSpec, wanted: list[Sequence], **settings: Any) -> None:
    """The same tokens of several sequences in the same steps, and log-probabilities that differ by no more than
    `RELATIVE`; of stages alone the same bits.

    Keys and values are float32: rounding them would make much of the last bits of a sum.
    """
    found = generated(split_driver(checkpoint, how, kv_dtype="f32", **settings))
    for one, other in zip(wanted, found, strict=True):
        near(np.stack(other.logprobs), np.stack(one.logprobs), 0.0 if how.ranks == 1 else RELATIVE)
        assert one.tokens == other.tokens


def near(found: FloatArray, wanted: FloatArray, relative: float) -> None:
    error = np.abs(found - wanted).max()
    assert error <= relative * np.ptp(wanted), error / np.ptp(wanted)


@pytest.mark.parametrize(("architecture", "how"), cuts(ARCHITECTURES, SPLITS, MORE_SPLITS))
def test_every_architecture_answers_in_parts_as_whole(
    answered: Callable[[str], Answered], architecture: str, how: PartitionSpec
) -> None:
    whole = answered(architecture)
    check_parts(whole.checkpoint, how, whole.sequences)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("architecture", ["olmo2", "deepseek_v4"])
def test_what_ranks_cannot_divide_answers_in_stages_as_whole(tmp_path: Path, architecture: str, stages: int) -> None:
    check_same(toy(tmp_path / "weights", architecture), PartitionSpec(stages=stages))


@pytest.mark.parametrize(
    "how",
    [
        PartitionSpec(ranks=3),
        PartitionSpec(stages=2, ranks=2, layers=(1, 2)),
        PartitionSpec(ranks=2, experts_whole=True),
    ],
    ids=name,
)
def test_heads_with_a_matrix_in_common_stay_together(tmp_path: Path, how: PartitionSpec) -> None:
    check_same(toy(tmp_path / "weights", "deepseek_v4"), how)


@pytest.mark.parametrize(("architecture", "how"), cuts(MIXTURES, EXPERT_SPLITS, MORE_EXPERT_SPLITS))
def test_experts_divided_as_wholes(answered: Callable[[str], Answered], architecture: str, how: PartitionSpec) -> None:
    whole = answered(architecture)
    check_parts(whole.checkpoint, how, whole.sequences)


def test_experts_placed_by_how_often_they_are_used(tmp_path: Path) -> None:
    spec = three_layers("qwen3_moe")
    counts = ((), tuple(float(i * 7 % 9) for i in range(9)), tuple(float(9 - i) for i in range(9)))
    how = PartitionSpec(ranks=2, experts_whole=True, placement=ExpertUse(counts), accelerators=(1,))
    check_same(array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec)), how)


@pytest.mark.parametrize(
    "how", [PartitionSpec(ranks=2), PartitionSpec(ranks=3), PartitionSpec(stages=2, ranks=2)], ids=name
)
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen2_moe"])
@pytest.mark.parametrize("kept", ["Q8_0", "F16"])
def test_gguf_files(tmp_path: Path, architecture: str, how: PartitionSpec, kept: str) -> None:
    """Of llama's the heads of q and k are interleaved. Blocks of 32 end with the heads of 32; of the 96 inner columns
    every rank has a block or two.
    """
    sizes = {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 96} if architecture == "qwen2_moe" else {}
    path = make_gguf(tmp_path / "model.gguf", architecture, matrix_type=kept, head_dim=32, **sizes)
    check_same(open_checkpoint(path), how)


@pytest.mark.parametrize("how", [PartitionSpec(ranks=2), PartitionSpec(stages=2, ranks=2)], ids=name)
def test_blocks_of_256_and_formats_that_python_decodes(tmp_path: Path, how: PartitionSpec) -> None:
    """Every matrix of a layer in another format, heads interleaved; each of two ranks has half of the columns, which
    are whole blocks.
    """
    check_same(mixed_formats(tmp_path / "weights"), how)


def test_blocks_of_256_cannot_be_cut_in_three(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"8 query heads of 64 elements.*blocks of 256.*give 1 or 2"):
        split_driver(mixed_formats(tmp_path / "weights"), PartitionSpec(ranks=3))


@pytest.mark.parametrize("how", [PartitionSpec(ranks=3), PartitionSpec(stages=2, ranks=2)], ids=name)
def test_folders_in_several_files(tmp_path: Path, how: PartitionSpec) -> None:
    folder = make_folder(tmp_path, "qwen3", shards=3, dtype="BF16", num_attention_heads=6, num_key_value_heads=3)
    check_same(open_checkpoint(folder), how)


@pytest.mark.parametrize("quantize", ["q8_0", "q4_0"])
def test_matrices_quantised_at_load_have_the_values_of_the_whole(tmp_path: Path, quantize: str) -> None:
    """Cut at the blocks that are made, so that scales are of the same values."""
    spec = toy_spec(head_dim=32)
    check_same(
        array_checkpoint(tmp_path / "weights", spec, toy_arrays(spec)), PartitionSpec(ranks=2), quantize=quantize
    )


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each in KINDS])
def test_a_whole_model_asks_nothing_of_others_and_parts_do(
    answered: Callable[[str], Answered], architecture: str
) -> None:
    """Of the whole ones `answered` makes sure, for every family."""
    checkpoint = answered(architecture).checkpoint
    for how in (PartitionSpec(stages=2), PartitionSpec(ranks=2)):
        with nobody_answers(), pytest.raises(AssertionError, match="nobody"):
            split_driver(checkpoint, how).prefill([1])


def test_ids_outside_the_vocabulary_are_refused_by_every_rank(tmp_path: Path) -> None:
    driver = split_driver(toy(tmp_path / "weights", "llama"), PartitionSpec(ranks=2))
    with pytest.raises(ValueError, match="outside a vocabulary of 80"):
        driver.prefill([1, 80])


def test_a_later_stage_wants_the_rows_of_the_one_before(tmp_path: Path) -> None:
    checkpoint, backend = toy(tmp_path / "weights", "llama"), ReferenceBackend()
    model = load_model(checkpoint, backend, part=plan(checkpoint, PartitionSpec(stages=2))[1])
    with pytest.raises(ValueError, match=r"rows \[2, 64\] of the stage before are wanted; the step has none"):
        Driver(model, backend).prefill([1, 2])


def test_kv_memory_is_of_the_layers_and_heads_that_are_here(tmp_path: Path) -> None:
    checkpoint = toy(tmp_path / "weights", "llama")
    parts = plan(checkpoint, PartitionSpec(stages=2, ranks=2))
    models = [load_model(checkpoint, ReferenceBackend(), part=part) for part in parts]
    assert [[kv.kv_heads for kv in m.kv_geometry(16).layers] for m in models] == [[1, 1], [1, 1], [1], [1]]
    whole = load_model(checkpoint, ReferenceBackend())
    assert sum(m.layout.target_bytes for m in models) < whole.layout.target_bytes * 1.05
    assert {m.kv_geometry(16).dtype for m in models} == {"f32"}
    quantised = [load_model(checkpoint, ReferenceBackend(), part=part, quantize="q8_0") for part in parts]
    assert {m.kv_geometry(16).dtype for m in quantised} == {"bf16"}


def test_kv_memory_is_of_one_type_in_all_parts(tmp_path: Path) -> None:
    """By the whole model's formats: a stage whose own are all float32 keeps keys and values as the others do."""
    spec = three_layers("llama")
    arrays = toy_arrays(spec)
    checkpoint = array_checkpoint(tmp_path / "weights", spec, arrays)
    down = "model.layers.2.mlp.down_proj.weight"
    checkpoint.add(down, stored(arrays[down], "BF16").tobytes(), BY_NAME["BF16"], arrays[down].shape)
    parts = plan(checkpoint, PartitionSpec(stages=2))
    assert {load_model(checkpoint, ReferenceBackend(), part=part).kv_geometry(16).dtype for part in parts} == {"bf16"}
    check_same(checkpoint, PartitionSpec(stages=2))


@needs_data
@pytest.mark.parametrize(
    "how", [PartitionSpec(ranks=3), PartitionSpec(stages=2, layers=(2, 3)), PartitionSpec(stages=2, ranks=2)], ids=name
)
@pytest.mark.parametrize("file", [".", "stories260K-f32.gguf"])
def test_golden_texts_of_a_real_model(file: str, how: PartitionSpec) -> None:
    check_golden(open_checkpoint(STORIES / file), how)


@needs_data
@pytest.mark.parametrize("how", [*MORE_EXPERT_SPLITS, PartitionSpec(ranks=2)], ids=name)
def test_equal_experts_on_several_ranks_tell_the_dense_models_stories(how: PartitionSpec) -> None:
    check_golden(open_checkpoint(STORIES_MIXTURE), how)


def check_golden(
    checkpoint: Checkpoint, how: PartitionSpec, make_backend: Callable[[], Backend] = ReferenceBackend
) -> None:
    entries: list[dict[str, Any]] = json.loads((STORIES / "golden.json").read_text())[:3]
    found = split_driver(checkpoint, how, make_backend).generate(
        [e["prompt_ids"] for e in entries], 24, chunk=5, stagger=2
    )
    assert [s.tokens for s in found] == [e["prompt_ids"] + e["greedy_ids"][:24] for e in entries]
    for sequence, entry in zip(found, entries, strict=True):
        logprobs = [row[token] for row, token in zip(sequence.logprobs, entry["greedy_ids"], strict=False)]
        assert np.abs(np.array(logprobs) - entry["logprobs"][:24]).max() < GOLDEN_BOUND


def mixed_formats(path: Path) -> Checkpoint:
    """Two layers whose matrices can be cut in halves only, q and k with interleaved heads, their biases too."""
    spec = toy_spec(
        "llama",
        hidden_size=256,
        intermediate_size=512,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        attention_bias=True,
        tie_word_embeddings=True,
    )
    checkpoint = array_checkpoint(path, spec, toy_arrays(spec))
    formats = {"q": "Q4_K", "k": "F64", "v": "IQ2_XS", "o": "Q6_K", "gate": "Q8_0", "up": "Q4_0", "down": "Q5_K"}
    later = formats | {"q": "BF16", "k": "Q3_K", "o": "IQ3_S", "down": "IQ2_XXS"}
    for expected in expected_tensors(architecture_of("llama").parameters, spec):
        key = expected.parameter.key.removesuffix("_bias")
        heads = {"q": 8, "k": 2}.get(key, 0)
        if expected.layer is not None and key in formats and not expected.parameter.key.endswith("_bias"):
            dtype = BY_NAME[(formats, later)[expected.layer][key]]
            checkpoint.add(expected.name, random_rows(dtype, *expected.shape), dtype, expected.shape, heads)
        elif heads:
            entry = checkpoint.tensors[expected.name]
            checkpoint.tensors[expected.name] = replace(entry, permuted_heads=heads)
    return checkpoint
