"""Toy models without any file format: a spec, random arrays, and a checkpoint that keeps them in one plain file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import FloatArray, LayerKv
from homenode.dtypes import BY_NAME, DType
from homenode.model.architectures.apertus import XieluFactors
from homenode.model.architectures.cohere2_moe import AveragedExperts
from homenode.model.architectures.deepseek_v4 import with_layers
from homenode.model.architectures.delta_net import with_delta
from homenode.model.architectures.falcon_h1 import FalconH1Multipliers
from homenode.model.architectures.gemma3n import Gemma3nExtras
from homenode.model.architectures.gemma4 import Gemma4Extras
from homenode.model.architectures.hyper_connections import StreamMixing
from homenode.model.architectures.hyperclovax import NormsBehind
from homenode.model.architectures.laguna import AttentionGates, with_query_heads
from homenode.model.architectures.latent_attention import LatentHeads, with_heads
from homenode.model.architectures.layer_norm_decoder import BlockStyle
from homenode.model.architectures.lfm2_moe import ExpertBias
from homenode.model.architectures.llama4 import Llama4Extras
from homenode.model.architectures.mimo_v2_flash import NarrowValues, with_narrow_values
from homenode.model.architectures.ministral3 import QueryGrowth
from homenode.model.architectures.muse_glimmer import GatedCappedBlock
from homenode.model.architectures.nemotron_h import NemotronExtras
from homenode.model.architectures.olmoe import ProjectionLimit
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.pooled_rows import DeepseekV4Spec
from homenode.model.architectures.registry import architecture_of
from homenode.model.architectures.tables import HeadNorms
from homenode.model.architectures.token_indexer import with_indexer
from homenode.model.files_read import FilesRead
from homenode.model.formats.fields import Fields
from homenode.model.spec import BlockChoice, DeltaSpec, IndexerSpec, ModelSpec, MoeSpec, RopeSpec, TensorEntry
from homenode.model.state_mixers import ConvolutionSpec, ScanSpec, with_mixer

MIXTURES = {
    "mixtral": MoeSpec(num_experts=4, experts_per_token=2, intermediate_size=96, normalise=True),
    "qwen2_moe": MoeSpec(
        num_experts=6, experts_per_token=3, intermediate_size=40, normalise=False, shared_intermediate_size=72
    ),
    "qwen3_moe": MoeSpec(num_experts=9, experts_per_token=4, intermediate_size=33, normalise=True, dense_layers=(0,)),
    "gpt_oss": MoeSpec(4, 2, 96, True, score="chosen_softmax", activation="clamped"),
    "glm4_moe": MoeSpec(8, 3, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=2.5, groups=4, groups_chosen=2),
    "qwen3_next": MoeSpec(5, 2, 40, True, 56, (1,)),
    "qwen3_5_moe": MoeSpec(7, 3, 40, True, 48),
    "gemma4": MoeSpec(num_experts=4, experts_per_token=2, intermediate_size=40, normalise=True, activation="gelu"),
    "phimoe": MoeSpec(
        num_experts=5, experts_per_token=2, intermediate_size=40, normalise=False, score="sparsemixer", jitter=0.1
    ),
    "minimax_m2": MoeSpec(num_experts=6, experts_per_token=3, intermediate_size=40, normalise=True, score="sigmoid"),
    "olmoe": MoeSpec(num_experts=6, experts_per_token=3, intermediate_size=40, normalise=False),
    "granitemoe": MoeSpec(num_experts=6, experts_per_token=3, intermediate_size=40, normalise=True),
    "granitemoeshared": MoeSpec(5, 2, 40, True, 48),
    "ernie4_5_moe": MoeSpec(6, 3, 40, True, 48, (0,)),
    "hunyuan_v1_moe": MoeSpec(5, 2, 40, True, 48),
    "exaone_moe": MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=2.5),
    **dict.fromkeys(
        ("dots1", "afmoe", "hy_v3"), MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=1.5)
    ),
    **dict.fromkeys(("deepseek", "deepseek_ocr"), MoeSpec(6, 3, 40, False, 48, (0,), scale=1.5)),
    "aria": MoeSpec(6, 2, 40, True, 80),
    "mellum": MoeSpec(6, 2, 40, True),
    "flex_olmo": MoeSpec(6, 3, 40, False),
    "bailing_moe_v2": MoeSpec(8, 3, 40, True, 48, (0,), "sigmoid", 1e-20, 1.5, groups=4, groups_chosen=2),
    "laguna": MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid", scale=1.5),
    "mimo_v2_flash": MoeSpec(6, 3, 40, True, 0, (0,), score="sigmoid", epsilon=1e-20, scale=1.5),
    "solar_open": MoeSpec(6, 3, 40, True, 48, score="sigmoid", epsilon=1e-20, scale=1.5),
    "nomic_bert": MoeSpec(6, 2, 40, False, dense_layers=(0,), activation="gelu_erf"),
    "llama4": MoeSpec(5, 1, 40, True, 40, (1,), score="chosen_softmax", weighted="input"),
    "kimi_linear": MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=1.5),
    "longcat_flash": MoeSpec(6, 3, 40, False, dense_layers=(1, 3), scale=1.5, identities=3),
    "cohere2_moe": MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid"),
    "dbrx": MoeSpec(6, 3, 40, True),
}
LATENTS = {
    "deepseek_v2": LatentHeads(0, 24, 10, 8, 12),
    "deepseek_v3": LatentHeads(20, 24, 10, 8, 12),
    "glm4_moe_lite": LatentHeads(28, 32, 12, 4, 14),
}
LATENTS |= dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), LATENTS["deepseek_v3"])
LATENTS["mistral4"] = replace(LATENTS["deepseek_v3"], growth=0.4, growth_length=8)
LATENTS["youtu"] = LATENTS["deepseek_v3"]
LATENTS["longcat_flash"] = LATENTS["deepseek_v3"]
LATENTS["kimi_linear"] = LATENTS["deepseek_v2"]
LATENTS["minicpm3"] = replace(LATENTS["deepseek_v3"], adjacent=False)
INDEXERS = {
    "deepseek_v32": IndexerSpec(heads=3, width=12, chosen=9, layers=(), adjacent=False),
    "glm_moe_dsa": IndexerSpec(heads=5, width=10, chosen=14, layers=(), adjacent=True),
    "minimax_m3": IndexerSpec(2, 18, 32, (), False, BlockChoice(size=16, count=2, local=1)),
}
MIXTURES |= {
    "deepseek_v2": MoeSpec(8, 3, 40, False, 48, (0,), scale=4.0, groups=4, groups_chosen=2, group_score="max"),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa"), replace(MIXTURES["glm4_moe"], num_experts=12)),
    "mistral4": MoeSpec(6, 2, 40, True, 48, epsilon=1e-20),
    "glm4_moe_lite": MoeSpec(6, 2, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=1.8),
}
MIXTURES |= {
    "minimax_m3": MoeSpec(6, 3, 40, True, 48, (0,), score="sigmoid", scale=2.0, activation="clamped"),
    "lfm2_moe": MoeSpec(6, 2, 40, True, dense_layers=(0,), score="sigmoid", epsilon=1e-6, scale=1.5),
    "granitemoehybrid": MoeSpec(6, 2, 40, True, 48, score="chosen_softmax"),
    "nemotron_h": MoeSpec(6, 2, 40, True, 48, (0,), score="sigmoid", epsilon=1e-20, scale=2.5, activation="relu2"),
}
MIXTURES["deepseek_v4"] = MoeSpec(
    6, 2, 40, True, 48, score="sqrt_softplus", epsilon=1e-20, scale=1.5, activation="limited"
)
_BIASED = ("qwen2", "qwen2_moe", "gpt_oss", "glm4_moe", "seed_oss", "glm", "glm4")
_GEMMA: dict[str, Any] = {
    "embedding_scale": 1.5, "attention_scale": 0.3, "sliding_window": 6, "sliding_layers": (True, False),
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMAS = {
    "vaultgemma": _GEMMA | {"attention_softcap": 2.0, "logits_softcap": 9.0},
    "gemma2": _GEMMA | {"attention_softcap": 2.0, "logits_softcap": 9.0},
    "gemma3": _GEMMA | {"local_rope": RopeSpec(theta=100.0)},
}

_WINDOWED = {"sliding_window": 6, "sliding_layers": (True, False, True)}
_PLACED = {**_WINDOWED, "rope_layers": (True, False, True)}
WINDOWED: dict[str, dict[str, Any]] = {
    "gpt_oss": _WINDOWED,
    "smollm3": {"rope_layers": (True, False, True)},
    **dict.fromkeys(("olmo3", "mellum"), _WINDOWED | {"local_rope": RopeSpec(theta=100.0)}),
    **dict.fromkeys(("cwm", "granite_swa", "ministral"), _WINDOWED),
    "laguna": _WINDOWED | {"local_rope": RopeSpec(theta=100.0, rotary_dim=8), "num_layers": 3},
    "mimo_v2_flash": _WINDOWED | {"local_rope": RopeSpec(theta=100.0, rotary_dim=8), "num_layers": 3},
    "exaone4": _PLACED,
    "exaone_moe": _PLACED,
    "afmoe": _PLACED,
    "llama4": {**_PLACED, "window_kind": "chunked"},
    "cohere2": _PLACED,
    "cohere2_moe": _PLACED,
    "muse_glimmer": _WINDOWED | {"logits_softcap": 9.0},
    "longcat_flash": {"num_layers": 4, "streams": 2},
    "kimi_linear": {"rope_layers": (False,) * 3},
    **{key: {"dimensions": {"positions": 256}} for key in ("gpt2", "gpt_bigcode", "gpt_neo", "opt")},
    "bert": {"dimensions": {"positions": 256, "types": 2}},
    "mpnet": {"dimensions": {"positions": 256, "relative_biases": 192}},
    "nomic_bert": {"dimensions": {"experts_bias": 1}},
    "jina_bert": {"dimensions": {"types": 2, "normed_heads": 1}},
}
# Of all layers but the last: key heads and value heads, their widths, and tokens that a convolution looks back.
DELTAS = {
    "qwen3_next": DeltaSpec((), 6, 12, 10, 12, 3, fused=True, fused_gates=True),
    "qwen3_5": DeltaSpec((), 6, 6, 16, 8, 2),
    "olmo_hybrid": DeltaSpec((), 6, 12, 10, 12, 3, gain=2.0, norm_epsilon=1e-3),
    "qwen3_5_moe": DeltaSpec((), 6, 18, 8, 18, 5),
    "kimi_linear": DeltaSpec((), 6, 6, 10, 10, 3),
}
# Heads and their widths, groups, the width of states, and tokens that a convolution looks back.
_SCAN = ScanSpec((), 6, 10, 2, 12, 3)
MIXERS: dict[str, ScanSpec | ConvolutionSpec] = {
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), ConvolutionSpec((), 64, 2, bias=True)),
    "granitemoehybrid": replace(_SCAN, groups=1),
    "bamba": replace(_SCAN, convolution_bias=False),
    "falcon_h1": replace(_SCAN, gating="norm_first"),
    "mamba2": replace(_SCAN, groups=6, input_bias=True, output_bias=True),
    "nemotron_h": replace(_SCAN, groups=3),
}
UNLIKE: dict[str, dict[str, Any]] = {  # heads of two kinds, and a table that stays in its file
    "gemma4": {
        "layer_kv": (LayerKv(2, 16, 16), LayerKv(1, 32, 32), LayerKv(2, 16, 16)), "num_layers": 3, "head_dim": 32,
        "sliding_window": 6,
        "sliding_layers": (True, False, True), "local_rope": RopeSpec(theta=100.0, rotary_dim=16),
        "tie_word_embeddings": True, "logits_softcap": 9.0,
        "dimensions": {"per_layer": 8, "all_per_layer": 24, "per_layer_vocabulary": 80},
        "layer_intermediate": (96, 96, 192),
    },
    "gemma3n": {
        "num_layers": 3, **_WINDOWED, "local_rope": RopeSpec(theta=100.0),
        "logits_softcap": 9.0, "attention_scale": 1.0, "embedding_scale": 8.0, "tie_word_embeddings": True,
        "streams": 4,
        "dimensions": {
            "per_layer": 8, "all_per_layer": 24, "per_layer_vocabulary": 80, "streams": 4, "stream_pairs": 16,
            "laurel": 12,
        },
    },
}  # fmt: skip
SCALES: dict[str, dict[str, Any]] = {  # of what layers add, and of logits
    **{
        key: {"residual_scale": 0.5, "logits_scale": 0.5}
        for key in ("granite", "granite_swa", "minicpm", "hyperclovax")
    },
    **{key: {"residual_scale": 0.4, "logits_scale": 0.3} for key in ("granitemoe", "granitemoeshared", "minicpm3")},
    "granitemoehybrid": {"residual_scale": 0.5, "logits_scale": 0.5, "rope_layers": (False,) * 3},
    **{key: {"logits_scale": 0.25} for key in ("cohere", "cohere2", "cohere2_moe")},
    "falcon_h1": {"logits_scale": 0.5},
    "muse_glimmer": {"logits_scale": 0.4},
}
OWN: dict[str, object] = {
    "starcoder2": BlockStyle(),
    "gpt_neox": BlockStyle("gelu_erf", "parallel"),
    "gptj": BlockStyle("gelu", "one_norm", positions="neighbours", head_bias=True),
    "phi": BlockStyle("gelu", "one_norm", head_bias=True),
    "falcon": BlockStyle("gelu_erf", "parallel"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo"), BlockStyle(positions="table")),
    "apertus": XieluFactors((0.8, 0.3, 0.5), (0.4, 0.9, 0.2), (0.5, 0.6, 0.4)),
    "gemma3n": Gemma3nExtras((0.3, 1.2, None)),
    "bloom": BlockStyle(positions="alibi", embedding_norm=True),
    "mpt": BlockStyle("gelu_erf", positions="alibi", norm_biases=False, clip=0.7),
    "nemotron": BlockStyle("relu2"),
    "phimoe": BlockStyle(head_bias=True),
    "stablelm": BlockStyle("silu_gate", "one_norm"),
    "cohere": HeadNorms(True),
    "falcon_h1": FalconH1Multipliers(0.9, 0.7, 0.8, (1.1, 1.0, 1.0, 1.0, 0.9), 0.8, 1.4),
    "lfm2_moe": ExpertBias(True),
    "llama4": Llama4Extras(True, 0.4, 8),
    "ministral3": QueryGrowth(0.4, 8),
    "hyperclovax": NormsBehind(True),
    "solar_open": HeadNorms(False),
    "laguna": AttentionGates("heads"),
    "jais2": BlockStyle("relu2"),
    "opt": BlockStyle("relu", positions="table"),
    "codegen": BlockStyle("gelu", "one_norm", positions="neighbours", head_bias=True),
    "cohere2_moe": AveragedExperts(True, 0.5),
    "dbrx": BlockStyle(norm_biases=False, clip=0.7),
    "persimmon": BlockStyle("relu2", head_norms=True),
    **dict.fromkeys(("olmo", "olmoe"), ProjectionLimit(0.7)),
    "arcee": BlockStyle("relu2"),
    "gemma4": Gemma4Extras(True),
    "muse_glimmer": GatedCappedBlock(1e-3, True, (True, False, True)),
    "glm4_moe": HeadNorms(True),
}


def toy_spec(architecture: str = "llama", **changes: object) -> ModelSpec:
    """A model of two layers whose widths are all different, so that no two matrices can be mistaken for each other."""
    spec = ModelSpec(
        architecture=architecture, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=6, num_kv_heads=2,
        head_dim=16,
        vocab_size=80, max_position=256, norm_eps=1e-5, rope=RopeSpec(), tie_word_embeddings=False,
        attention_bias=architecture in _BIASED, output_bias=architecture == "gpt_oss", moe=MIXTURES.get(architecture),
    )  # fmt: skip
    spec = replace(spec, own=OWN.get(architecture), **(GEMMAS | WINDOWED | UNLIKE).get(architecture, {}))
    spec = replace(spec, **SCALES.get(architecture, {}))
    spec = replace(spec, **changes)  # type: ignore[arg-type]
    if architecture == "mimo_v2_flash":
        spec = with_narrow_values(spec, NarrowValues(10, 0.7), [2 if each else 1 for each in spec.sliding_layers])
    if architecture == "laguna":
        spec = with_query_heads(Fields(Path("config.json"), {}), spec, (6, 8, 6))
    if architecture == "deepseek_v4":
        return _with_pooled_rows(spec)
    if heads := LATENTS.get(architecture):
        spec = with_heads(spec, heads)
    if indexer := INDEXERS.get(architecture):
        first = 0 if indexer.blocks is None else 1
        return with_indexer(spec, replace(indexer, layers=tuple(range(first, spec.num_layers))))
    if delta := DELTAS.get(architecture):
        return with_delta(spec, replace(delta, layers=tuple(range(spec.num_layers - 1))))
    return with_toy_mixer(spec) if architecture in MIXERS else spec


def _with_pooled_rows(spec: ModelSpec) -> ModelSpec:
    """Of runs of 8 tokens, and of 4 that overlap. Experts go by the token in the first layer."""
    ropes = {"rope": RopeSpec(rotary_dim=8), "local_rope": RopeSpec(theta=100.0, rotary_dim=8)}
    indexer, figures = IndexerSpec(3, 12, 2, (1,), True), DeepseekV4Spec(5, (1,), 1, StreamMixing(3, 1e-6))
    ratios = (8, 4, 0)[: spec.num_layers]
    return with_layers(replace(spec, num_kv_heads=1, **ropes), ratios, figures, indexer, 20, (3, 12), 3)  # type: ignore[arg-type]


def with_toy_mixer(spec: ModelSpec) -> ModelSpec:
    """With what keeps a state in all layers but the last, which attends; or in all, beside attention or without any; or
    in the first, before attention and, at the end, experts.
    """
    every, mixer = range(spec.num_layers), MIXERS[spec.architecture]
    recurrent, attends = every[:-1], every[-1:]
    if spec.architecture in ("mamba2", "falcon_h1"):
        recurrent, attends = every, every if spec.architecture == "falcon_h1" else range(0)
    if spec.architecture == "nemotron_h":
        recurrent, attends = every[:1], every[1:-1]
        assert spec.moe is not None
        moe = replace(spec.moe, dense_layers=tuple(every[:-1]))
        spec = replace(spec, moe=moe, own=NemotronExtras((), "relu2", True), dimensions={"expert_hidden": 20})
    return with_mixer(spec, replace(mixer, layers=tuple(recurrent)), attends)


def toy_arrays(spec: ModelSpec, seed: int = 0) -> dict[str, FloatArray]:
    """Random parameters by Hugging Face name, scaled so that logits differ by a few units."""
    random = np.random.default_rng(seed)
    arrays = {}
    for expected in expected_tensors(architecture_of(spec.architecture).parameters, spec):
        values = random.standard_normal(expected.shape)
        if expected.parameter.key == "experts_of_token":  # different ones of each
            assert spec.moe is not None
            values = np.argsort(random.random((expected.shape[0], spec.moe.num_experts)))[:, : expected.shape[1]]
            arrays[expected.name] = values.astype(np.float32)
            continue
        if len(expected.shape) == 2:
            values *= 1.0 if expected.parameter.key == "embed" else 1.5 / np.sqrt(expected.shape[1])
        else:
            values = 0.1 * values + (1.0 if expected.name.endswith("weight") else 0.0)
        arrays[expected.name] = values.astype(np.float32)
    return arrays


@dataclass
class ArrayCheckpoint:
    """A `Checkpoint` made of arrays, all in the one file `path`."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    metadata: dict[str, object] = field(default_factory=dict)
    files: FilesRead = field(default_factory=FilesRead)

    def add(self, name: str, stored: bytes, dtype: DType, shape: tuple[int, ...], permuted_heads: int = 0) -> None:
        """Append a tensor to the file."""
        with self.path.open("ab") as file:
            offset = file.tell()
            file.write(stored)
        self.tensors[name] = TensorEntry(name, dtype, shape, self.path, offset, len(stored), permuted_heads)


def array_checkpoint(path: Path, spec: ModelSpec, arrays: Mapping[str, FloatArray]) -> ArrayCheckpoint:
    """A float32 checkpoint of `arrays`."""
    path.write_bytes(b"an offset that is not zero")
    checkpoint = ArrayCheckpoint(path, spec)
    for name, array in arrays.items():
        checkpoint.add(name, array.astype("<f4").tobytes(), BY_NAME["F32"], array.shape)
    return checkpoint
