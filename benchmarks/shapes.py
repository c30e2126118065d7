"""How near a mixture of experts comes to what the machine allows: `python -m benchmarks.shapes [NAME]... --out FILE`.

Random weights in the layer shapes of published models, of which only some layers are made. All matrices of one format
are read from the same random blocks in one small file, and lie in memory each by itself, as those of a model do. For
each shape decoding is held against the bytes that a token reads at the machine's bandwidth, and a prompt against its
operations at the machine's rate, as `homenode bench model` has it. The file gets all figures, with the phases of a
step.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.random_model import ArrayCheckpoint
from homenode.bench.compute.model import ModelBenchPlan, measure
from homenode.bench.compute.model_result import ModelBenchResult
from homenode.cli.benchmarks.options import meter_of, native_backend
from homenode.cli.benchmarks.progress import measuring
from homenode.dtypes import BY_NAME, DType
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.folder_spec import spec_from_config
from homenode.model.config.folder_config import FolderConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.model.weights.load import load_model

DECODE_AIM, PREFILL_AIM = 0.75, 0.5  # of the ceilings


@dataclass(frozen=True)
class Shape:
    """`config`: fields of config.json, `layers` among them as many as are made. `formats`: of matrices, by what
    `Parameter.key` begins with, the first that fits; routers are float32."""

    config: dict[str, Any]
    formats: dict[str, str]


_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SHAPES = {
    "qwen3.5-35b-a3b": Shape(
        {
            "architectures": ["Qwen3_5MoeForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 32768,
            "num_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}, "tie_word_embeddings": False,
        },
        {"embed": "Q4_K", "lm_head": "Q6_K", "": "Q4_K"},
    ),
    "gpt-oss-20b": Shape(
        {
            "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 4, "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "max_position_embeddings": 32768,
            "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "rope_parameters": _ROPE,
            "tie_word_embeddings": False,
        },
        {"expert": "MXFP4", "embed": "Q8_0", "": "Q8_0"},
    ),
    "deepseek-v2-lite": Shape(
        {
            "architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 5, "hidden_size": 2048,
            "intermediate_size": 10944,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
            "max_position_embeddings": 32768,
            "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
            "topk_method": "greedy",
            "norm_topk_prob": False, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "rope_parameters": _ROPE,
            "tie_word_embeddings": False,
        },
        {"lm_head": "Q8_0", "": "Q4_0"},
    ),
}  # fmt: skip
# Where a block has its scales, and a half-precision number or an exponent that makes values of about 0.02.
_SCALES: Mapping[str, tuple[int, bytes]] = {
    "Q4_0": (0, np.float16(0.004).tobytes()),
    "Q8_0": (0, np.float16(0.0003).tobytes()),
    "Q4_K": (0, np.float16(0.0001).tobytes() * 2),
    "Q6_K": (208, np.float16(0.00002).tobytes()),
    "MXFP4": (0, bytes([120])),
}


def spec_of(config: dict[str, Any], path: Path) -> ModelSpec:
    """The figures of a config.json with these fields."""
    path.write_text(json.dumps(config))
    return spec_from_config(FolderConfig(Fields(path, config), Fields(path, {}), True, "BF16"))


def random_values(dtype: DType, elements: int) -> bytes:
    """Small random numbers, in blocks where the format has any."""
    rng = np.random.default_rng(1)
    if dtype.name in ("F32", "F16"):
        return (0.02 * rng.standard_normal(elements)).astype(f"<f{dtype.bytes}").tobytes()
    blocks = rng.integers(0, 256, (elements // dtype.block, dtype.bytes), np.uint8)
    at, scale = _SCALES[dtype.name]
    blocks[:, at : at + len(scale)] = np.frombuffer(scale, np.uint8)
    return blocks.tobytes()


def checkpoint_of(shape: Shape, folder: Path) -> ArrayCheckpoint:
    """A model of that shape. Its matrices of one format begin at the same place of one file."""
    spec = spec_of(shape.config, folder / "config.json")
    expected = list(expected_tensors(architecture_of(spec.architecture).parameters, spec))
    formats = {tensor.name: _format_of(shape, tensor.parameter.key, tensor.shape) for tensor in expected}
    largest = dict.fromkeys(formats.values(), 0)
    for tensor in expected:
        dtype = formats[tensor.name]
        largest[dtype] = max(largest[dtype], math.prod(tensor.shape))
    file, places = folder / "weights", dict[DType, int]()
    with file.open("wb") as opened:
        for dtype, elements in largest.items():
            places[dtype] = opened.tell()
            opened.write(random_values(dtype, elements))
    tensors = {}
    for tensor in expected:
        dtype = formats[tensor.name]
        size = math.prod(tensor.shape[:-1]) * dtype.row_bytes(tensor.shape[-1])
        tensors[tensor.name] = TensorEntry(tensor.name, dtype, tensor.shape, file, places[dtype], size)
    return ArrayCheckpoint(file, spec, tensors, {})


def _format_of(shape: Shape, key: str, lengths: tuple[int, ...]) -> DType:
    """Of a tensor: float32 for vectors, routers, and rows that end within a block."""
    found = next(name for start, name in shape.formats.items() if key.startswith(start))
    exact = len(lengths) == 1 or "router" in key or lengths[-1] % BY_NAME[found].block != 0
    return BY_NAME["F32" if exact else found]


def measure_shape(shape: Shape, threads: int | None, plan: ModelBenchPlan) -> list[ModelBenchResult]:
    """What `homenode bench model` would say of it."""
    backend = native_backend(threads, None)
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(checkpoint_of(shape, Path(folder)), backend)
    with measuring(plan.tests * (plan.repeat + 1)) as watch:
        return measure(model, backend, meter_of(backend), plan, watch)


def line_of(name: str, result: ModelBenchResult) -> str:
    """One result beside its aim, for people."""
    aim = DECODE_AIM if result.test == "decode" else PREFILL_AIM
    what = f"{result.test}, batch {result.batch}" if result.test == "decode" else f"prefill of {result.tokens}"
    kept = "reached" if result.fraction >= aim else "missed"
    share = f"{result.fraction:.2f} of the {result.limit} ceiling (aim {aim:.2f} {kept})"
    return f"{name}: {what}: {result.tok_s:.1f} tok/s, {share}"


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(SHAPES)))
@click.option("--threads", type=int, default=None, help="Compute threads; one for each physical core unless given.")
@click.option("--prompt-tokens", type=int, default=512, show_default=True)
@click.option("--gen-tokens", type=int, default=64, show_default=True)
@click.option("--context", type=int, default=512, show_default=True, help="Tokens before those that are decoded.")
@click.option("--repeat", type=int, default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Gets all figures as JSON.")
@click.option(
    "--gguf",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="Measure nothing; write the models into this folder, for `python -m benchmarks.compare`.",
)
def main(
    names: tuple[str, ...],
    threads: int | None,
    prompt_tokens: int,
    gen_tokens: int,
    context: int,
    repeat: int,
    out: Path | None,
    gguf: Path | None,
) -> None:
    """Measure."""
    if gguf is not None:
        from benchmarks.shape_files import write_shape

        for name in names or SHAPES:
            print(write_shape(name, gguf), flush=True)
        return
    plan = ModelBenchPlan(prompt_tokens, gen_tokens, (1,), context, repeat, phases=True)
    found = {}
    for name in names or SHAPES:
        results = measure_shape(SHAPES[name], threads, plan)
        for result in results:
            print(line_of(name, result), flush=True)
            if result.fraction < (DECODE_AIM if result.test == "decode" else PREFILL_AIM):
                for phase in sorted(result.phases, key=lambda one: -one.seconds)[:8]:
                    reached = f", {phase.fraction:.0%} of its ceiling" if phase.fraction else ""
                    print(f"    {phase.name}: {phase.share:.0%} of the step{reached}", flush=True)
        found[name] = [asdict(result) for result in results]
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
