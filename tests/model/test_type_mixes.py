"""GGUF files whose matrices are of as many types as those of published quantisations, made of random blocks: they load,
and agree with the same values in float32.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
pytest.importorskip("transformers", reason="needs transformers, which the `torch` dependency group installs")

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.dtypes import BY_NAME
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.fallback_decode import decode_rows
from homenode.model.weights.load import load_model
from tests.model.driver import Driver
from tests.model.parity import Case, spread_error, write_stacked_gguf
from tests.model.test_gpt_oss import CASE as GPT_OSS
from tests.model.test_latent_attention import V3
from tests.model.test_weight_formats import HALF, SCALES
from tests.model.transformers_models import make_model, quiet_and_on_one_thread

pytestmark = pytest.mark.torch

PROMPT = [5, 70, 33, 12, 9, 41, 2, 77, 50, 8, 61, 7, 99, 100, 3]
BOUND = 0.05  # of the spread of log-probabilities: activations rounded to eight bits, codebooks to Q8_0


@dataclass(frozen=True)
class Mix:
    """A published file: the types of its matrices by their names, of which the first pattern that fits counts; others,
    and vectors, are F32. `case`: a toy of its architecture.
    """

    case: Case
    types: dict[str, str]

    def kind(self, name: str) -> str:
        """The type of a tensor."""
        return next((kind for pattern, kind in self.types.items() if re.fullmatch(pattern, name)), "F32")


WIDE = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
LATENTS = {"kv_lora_rank": 256, "q_lora_rank": 256, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64}
LATENT_KEYS = {
    "attention.key_length": 288, "attention.value_length": 256, "attention.key_length_mla": 64,
    "attention.value_length_mla": 64,
    "attention.q_lora_rank": 256, "attention.kv_lora_rank": 256, "rope.dimension_count": 32,
    "expert_feed_forward_length": 256,
}  # fmt: skip
MIXES = {
    "gpt-oss-20b UD-Q4_K_XL": Mix(
        replace(GPT_OSS, changes={**GPT_OSS.changes, **WIDE},
            gguf_keys={**GPT_OSS.gguf_keys, "expert_feed_forward_length": 256}),
        {
            r"blk\.0\.ffn_down_exps\.weight": "Q8_0", r".*_exps\.weight": "MXFP4", r".*attn_q\.weight": "F16",
            r".*attn_k\.weight": "Q5_0",
            r".*attn_v\.weight": "Q8_0", r".*attn_output\.weight": "Q5_1", r"token_embd\.weight": "Q5_1",
            r"output\.weight": "Q8_0",
        },
    ),
    "DeepSeek-R1 UD-IQ3_XXS": Mix(
        replace(V3, changes={**V3.changes, **WIDE, **LATENTS}, gguf_keys={**V3.gguf_keys, **LATENT_KEYS}),
        {
            r"blk\.1\.ffn_down_exps\.weight": "IQ4_XS", r".*ffn_down_exps\.weight": "Q3_K",
            r"blk\.2\.ffn_gate_exps\.weight": "IQ3_S",
            r".*ffn_(gate|up)_exps\.weight": "IQ3_XXS", r".*attn_[kv]_b\.weight": "Q8_0",
            r".*attn_kv_a_mqa\.weight": "Q6_K",
            r".*attn_(q_a|q_b|output)\.weight": "Q5_K", r".*ffn_down_shexp\.weight": "Q6_K",
            r".*ffn_(gate|up)_shexp\.weight": "Q5_K",
            r"blk\.0\.ffn_down\.weight": "Q6_K", r".*ffn_(gate|up)\.weight": "Q4_K", r"token_embd\.weight": "Q4_K",
            r"output\.weight": "Q6_K",
        },
    ),
}  # fmt: skip


def random_blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> bytes:
    """A matrix or a stack whose products are about as large as what they are made of."""
    dtype, columns = BY_NAME[kind], shape[-1]
    rows, wanted = int(np.prod(shape[:-1])), columns**-0.5
    if kind == "F16":
        return (rng.standard_normal((rows, columns)) * wanted).astype("<f2").tobytes()
    raw = rng.integers(0, 256, (rows * columns // dtype.block, dtype.bytes), np.uint8)

    def with_scale(times: float) -> bytes:
        for offset, value in SCALES[kind].items():
            scaled = struct.pack("<e", 0.01 * times) * (len(value) // len(HALF))
            if kind == "MXFP4":
                scaled = bytes([122 + round(np.log2(times))])
            raw[:, offset : offset + len(scaled)] = np.frombuffer(scaled, np.uint8)
        return raw.tobytes()

    return with_scale(wanted / float(decode_rows(with_scale(1.0), dtype, (rows, columns)).std()))


def write(mix: Mix, folder: Path) -> tuple[Path, Path]:
    """The model with matrices of these types, and the same values as F32."""
    rng, values = np.random.default_rng(5), dict[str, FloatArray]()

    def in_blocks(name: str, floats: FloatArray) -> tuple[object, str]:
        if (kind := mix.kind(name)) == "F32":
            values[name] = floats
            return floats, kind
        data = random_blocks(kind, floats.shape, rng)
        rows = int(np.prod(floats.shape[:-1]))
        values[name] = decode_rows(data, BY_NAME[kind], (rows, floats.shape[-1])).reshape(floats.shape)
        return np.frombuffer(data, np.float16 if kind == "F16" else np.uint8).reshape(*floats.shape[:-1], -1), kind

    with quiet_and_on_one_thread():
        make_model(mix.case.kind, mix.case.changes, folder)
        mixed = write_stacked_gguf(mix.case, folder, folder / "mixed.gguf", in_blocks)
        plain = write_stacked_gguf(mix.case, folder, folder / "plain.gguf", lambda name, _: (values[name], "F32"))
    return mixed, plain


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_of_types_is_the_model_of_its_values(name: str, tmp_path: Path, backend: Backend) -> None:
    mixed, plain = write(MIXES[name], tmp_path)
    kinds = {entry.dtype.name for entry in open_checkpoint(mixed).tensors.values()}
    assert kinds == {*MIXES[name].types.values(), "F32"}
    wanted = Driver(load_model(open_checkpoint(plain), ReferenceBackend()), ReferenceBackend()).prefill(PROMPT)[1]
    found = Driver(load_model(open_checkpoint(mixed), backend), backend, kv_dtype="f32").prefill(PROMPT)[1]
    errors = [spread_error(ours, theirs) for ours, theirs in zip(found, wanted, strict=True)]
    assert np.median(errors) < BOUND  # a router that hesitates may choose another expert in single rows
