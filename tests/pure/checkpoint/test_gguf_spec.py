"""GGUF files as models: figures from metadata, Hugging Face names, rope factors, interleaved heads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.registry import architecture_of
from homenode.model.checkpoint.gguf_names import GgufNames
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, RopeSpec
from tests.checkpoints import (
    F32,
    STRING,
    TOYS,
    U32,
    gguf_bytes,
    interleave_heads,
    make_folder,
    make_gguf,
    toy_config,
    toy_tensors,
)

pytest.importorskip("gguf", reason="needs the gguf package to write files")


def spec_of(path: Path, architecture: str = "llama", **how: Any) -> ModelSpec:
    return open_checkpoint(make_gguf(path / "m.gguf", architecture, **how)).spec


@pytest.mark.parametrize("architecture", [name for name in TOYS if name != "mistral"])
def test_the_same_model_as_folder_and_file(architecture: str, tmp_path: Path) -> None:
    folder = open_checkpoint(make_folder(tmp_path / "hf", architecture))
    gguf = open_checkpoint(make_gguf(tmp_path / "m.gguf", architecture))
    theirs = {**vars(folder.spec), "norm_eps": pytest.approx(folder.spec.norm_eps)}  # float32 in the file
    assert vars(gguf.spec) == theirs
    assert {n: e.shape for n, e in gguf.tensors.items()} == {n: e.shape for n, e in folder.tensors.items()}
    config = toy_config(architecture)
    heads = (
        {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        if architecture in ("llama", "mixtral", "granite")
        else {}
    )
    for name, values in toy_tensors(config).items():
        entry = gguf.tensors[name]
        assert entry.permuted_heads == heads.get(name.split(".")[-2], 0), name
        wanted = interleave_heads(values, entry.permuted_heads) if entry.permuted_heads else values
        wanted = wanted + np.float32(folder.tensors[name].plus)
        assert entry.shape == values.shape, name
        assert np.array_equal(np.concatenate(list(iter_decoded_rows(entry))).reshape(wanted.shape), wanted), name


def names_of(architecture: str) -> GgufNames:
    return GgufNames(architecture_of(architecture))


def test_names_of_experts() -> None:
    qwen, mixtral = names_of("qwen3_moe"), names_of("mixtral")
    assert qwen.hugging_face_name("blk.3.ffn_gate_inp.weight") == "model.layers.3.mlp.gate.weight"
    assert mixtral.hugging_face_name("blk.3.ffn_gate_inp.weight") == "model.layers.3.block_sparse_moe.gate.weight"
    one = "blk.3.ffn_up.12.weight"
    assert qwen.hugging_face_name(one) == "model.layers.3.mlp.experts.12.up_proj.weight"
    assert mixtral.hugging_face_name(one) == "model.layers.3.block_sparse_moe.experts.12.w3.weight"
    assert qwen.hugging_face_name("blk.3.ffn_up_exps.weight") == "blk.3.ffn_up_exps.weight"  # many tensors, not one
    assert qwen.expert_names("blk.0.ffn_down_exps.weight", 2) == tuple(
        (f"model.layers.0.mlp.experts.{e}.down_proj.weight",) for e in (0, 1)
    )
    assert qwen.expert_names("blk.0.ffn_gate_up_exps.weight", 1) == (
        tuple(f"model.layers.0.mlp.experts.0.{part}_proj.weight" for part in ("gate", "up")),
    )
    assert qwen.expert_names("blk.0.ffn_down.weight", 2) == ()


def test_experts_that_are_not_as_many_as_promised(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "m.gguf", "qwen3_moe", num_experts=5, tensors_of={"num_experts": 6})
    with pytest.raises(
        CheckpointError, match=r"ffn_gate_exps\.weight: seen \[6, 32, 64\], wanted matrices of 5 experts"
    ):
        open_checkpoint(path)


def test_more_experts_of_a_token_than_there_are(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "m.gguf", "qwen3_moe", num_experts_per_tok=7)
    with pytest.raises(CheckpointError, match=r"experts of a token: seen 7, wanted at most the 6 there are"):
        open_checkpoint(path)


def test_sizes_of_experts_that_older_files_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's experts share the length of an MLP, and the expert all use has it."""
    for key in ("add_expert_feed_forward_length", "add_expert_shared_feed_forward_length"):
        monkeypatch.setattr(f"gguf.GGUFWriter.{key}", lambda *_: None)
    sizes = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 96}
    moe = open_checkpoint(make_gguf(tmp_path / "m.gguf", "qwen2_moe", **sizes)).spec.moe
    assert moe is not None and (moe.intermediate_size, moe.shared_intermediate_size) == (32, 96)


def test_names() -> None:
    for stored, name in {
        "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
        "blk.12.ffn_norm.weight": "model.layers.12.post_attention_layernorm.weight",
        "blk.3.attn_q.bias": "model.layers.3.self_attn.q_proj.bias",
        "blk.3.attn_k_norm.weight": "model.layers.3.self_attn.k_norm.weight",
        "blk.3.attn_output.weight": "model.layers.3.self_attn.o_proj.weight",
        "blk.9.ffn_down.weight": "model.layers.9.mlp.down_proj.weight",
        "blk.03.attn_q.weight": "blk.03.attn_q.weight", "blk.3.new_part.weight": "blk.3.new_part.weight",
        "v.patch": "v.patch",
    }.items():  # fmt: skip
        assert names_of("qwen3").hugging_face_name(stored) == name


def test_names_of_what_lies_in_one_tensor() -> None:
    parts = tuple(f"model.layers.3.self_attn.{part}_proj.weight" for part in "qkv")
    assert names_of("qwen3").names_of("blk.3.attn_qkv.weight") == parts
    assert names_of("phi3").names_of("blk.3.attn_qkv.weight") == (
        "model.layers.3.self_attn.qkv_proj.weight",
    )  # its own
    assert names_of("gemma3").names_of("blk.3.attn_qkv.bias") == ("blk.3.attn_qkv.bias",)  # it has no biases
    assert names_of("qwen3").names_of("blk.3.attn_q.weight") == parts[:1]
    assert names_of("qwen3").names_of("v.patch") == ("v.patch",)


def test_names_of_gemmas() -> None:
    for stored, name in {
        "blk.1.ffn_norm.weight": "model.layers.1.pre_feedforward_layernorm.weight",
        "blk.1.post_attention_norm.weight": "model.layers.1.post_attention_layernorm.weight",
        "blk.1.post_ffw_norm.weight": "model.layers.1.post_feedforward_layernorm.weight",
        "blk.1.attn_q.weight": "model.layers.1.self_attn.q_proj.weight",
    }.items():
        assert names_of("gemma2").hugging_face_name(stored) == name


def test_longrope(tmp_path: Path) -> None:
    factors = {
        f"rope_factors_{kind}.weight": np.full(8, value, np.float32) for kind, value in (("short", 1.0), ("long", 3.0))
    }
    keys = {"phi3.rope.scaling.original_context_length": 64, "phi3.rope.scaling.attn_factor": 1.5}
    spec = spec_of(tmp_path, "phi3", extra=factors, keys=keys)
    assert spec.rope == RopeSpec(
        kind="longrope", original_max_position=64, attention_factor=1.5, short_factors=(1.0,) * 8,
        long_factors=(3.0,) * 8
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="rope frequency factors: seen 4 of them, wanted 8"):
        spec_of(tmp_path, "phi3", extra=factors | {"rope_factors_long.weight": np.ones(4, np.float32)}, keys=keys)


def test_what_files_of_gemmas_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest ones scale scores by the columns for each head, whatever a head's length."""
    monkeypatch.setattr("gguf.GGUFWriter.add_sliding_window", lambda *_: None)
    small = spec_of(tmp_path, "gemma2")
    assert (small.sliding_window, small.attention_softcap, small.logits_softcap, small.attention_scale) == (
        4096,
        50.0,
        30.0,
        0.25,
    )
    for architecture, layers in (("gemma2", 46), ("gemma3", 62)):
        assert spec_of(tmp_path, architecture, num_hidden_layers=layers, head_dim=32).attention_scale == 0.25
    keys = {"gemma2.attn_logit_softcapping": 11.0, "gemma2.final_logit_softcapping": 12.0}
    capped = spec_of(tmp_path, "gemma2", keys=keys)
    assert (capped.attention_softcap, capped.logits_softcap) == (11.0, 12.0)


def test_tying_follows_the_weights(tmp_path: Path) -> None:
    assert spec_of(tmp_path, tie_word_embeddings=True).tie_word_embeddings
    assert not spec_of(tmp_path, tie_word_embeddings=False).tie_word_embeddings


def test_rope_freqs_become_factors(tmp_path: Path) -> None:
    factors = np.linspace(1.0, 8.0, 8, dtype=np.float32)
    checkpoint = open_checkpoint(make_gguf(tmp_path / "m.gguf", extra={"rope_freqs.weight": factors}))
    assert (
        checkpoint.spec.rope == RopeSpec(factors=tuple(float(f) for f in factors))
        and "rope_freqs.weight" not in checkpoint.tensors
    )


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.ones(7, np.float32), "7 of them, wanted 8"),
        (np.zeros(8, np.float32), "not positive"),
        (np.full(8, np.nan, np.float32), "not positive"),
        (np.ones((2, 4), np.float32), r"F32 \[2, 4\]"),
        (np.ones(8, np.float16), "F16"),
    ],
)
def test_rope_freqs_that_cannot_be(factors: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        spec_of(tmp_path, extra={"rope_freqs.weight": factors})


S = "llama.rope.scaling."
ROPES: dict[str, tuple[dict[str, Any], RopeSpec, int]] = {
    "none": ({S + "type": "none"}, RopeSpec(), 256),
    "linear": ({S + "type": "linear", S + "factor": 4.0}, RopeSpec(kind="linear", factor=4.0), 256),
    "linear by 1": ({S + "type": "linear", S + "factor": 1.0}, RopeSpec(), 256),
    "a factor alone": ({S + "factor": 2.0}, RopeSpec(kind="linear", factor=2.0), 256),
    "early spelling": ({"llama.rope.scale_linear": 2.0}, RopeSpec(kind="linear", factor=2.0), 256),
    "yarn": (
        {S + "type": "yarn", S + "factor": 4.0, S + "original_context_length": 128},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=128), 512,
    ),
    "yarn with a factor of its own": (
        {S + "type": "yarn", S + "factor": 4.0, S + "attn_factor": 0.5},
        RopeSpec(kind="yarn", factor=4.0, original_max_position=256, attention_factor=0.5 * (0.1 * math.log(4) + 1)),
        1024,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROPES)
def test_rope_scaling(case: str, tmp_path: Path) -> None:
    keys, rope, position = ROPES[case]
    spec = spec_of(tmp_path, keys=keys)
    assert (spec.rope, spec.max_position) == (rope, position)


def test_end_tokens(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, keys={"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2})
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2, 7))


def raw_model(pairs: list[tuple[str, int, Any]]) -> bytes:
    """A llama of one token embedding [8, 4], enough for its figures."""
    figures = {
        "embedding_length": 4,
        "attention.head_count": 2,
        "block_count": 1,
        "context_length": 16,
        "feed_forward_length": 8,
    }
    keys: dict[str, tuple[int, Any]] = {
        "general.architecture": (STRING, "llama"),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    }
    keys |= {f"llama.{key}": (U32, value) for key, value in figures.items()}
    keys |= {key: (kind, value) for key, kind, value in pairs}
    return gguf_bytes(
        [(key, kind, value) for key, (kind, value) in keys.items()], [("token_embd.weight", [4, 8], 0, 0)], bytes(128)
    )


def test_end_tokens_are_those_under_keys(tmp_path: Path) -> None:
    """Names are looked at where text is: see tests/pure/test_stop_tokens.py."""
    path = tmp_path / "m.gguf"
    tokens = ["a", "<|im_end|>", "</s>", "<|im_end|>"]
    vocabulary = [("tokenizer.ggml.tokens", 9, (STRING, tokens)), ("tokenizer.ggml.token_type", 9, (5, [1, 3, 3, 1]))]
    for keys, wanted in (([2], (2,)), ([2, 1], (2, 1)), ([99999], ()), ([2**32 - 1, 1], (1,)), ([], ())):
        roles = [(f"tokenizer.ggml.{role}_token_id", U32, i) for role, i in zip(("eos", "eot"), keys, strict=False)]
        path.write_bytes(raw_model([*vocabulary, *roles]))
        assert open_checkpoint(path).spec.eos_token_ids == wanted
        path.write_bytes(raw_model([*vocabulary, *roles, ("tokenizer.ggml.model", STRING, "llama")]))
        usual = () if keys and keys[0] == 2 else (2,)
        assert open_checkpoint(path).spec.eos_token_ids == tuple(dict.fromkeys((*usual, *wanted)))


def test_sampling_defaults_and_missing_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_model([("general.sampling.temp", F32, 0.5), ("general.sampling.top_k", 5, 20)]))
    spec = open_checkpoint(path).spec
    assert (spec.generation, spec.eos_token_ids, spec.vocab_size, spec.num_kv_heads, spec.head_dim) == (
        {"temperature": 0.5, "top_k": 20},
        (),
        8,
        2,
        2,
    )


def test_a_llama_with_a_window_is_a_mistral(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, keys={"llama.attention.sliding_window": 64})
    assert (spec.architecture, spec.sliding_window) == ("mistral", 64)


MIXTURE: list[tuple[str, int, Any]] = [("llama.expert_count", U32, 8), ("llama.expert_used_count", U32, 2)]
UNSUPPORTED: dict[str, tuple[list[tuple[str, int, Any]], str]] = {
    "another architecture": ([("general.architecture", STRING, "llama9")],
        "'llama9' is not supported; homenode runs GGUF files of .*llama"),
    "no architecture": ([("general.architecture", STRING, "")], "architecture '' is not supported"),
    "experts of a dense kind": ([("general.architecture", STRING, "qwen3"), ("qwen3.expert_count", U32, 8)],
        "mixtures of experts"),
    "experts chosen by sigmoid": ([*MIXTURE, ("llama.expert_gating_func", U32, 2)], "expert_gating_func 2"),
    "experts in groups": ([*MIXTURE, ("llama.expert_group_count", U32, 4)], "expert_group_count 4"),
    "experts with a scale": ([*MIXTURE, ("llama.expert_weights_scale", F32, 2.5)], "expert_weights_scale 2.5"),
    "unequal heads": ([("llama.attention.key_length", U32, 2), ("llama.attention.value_length", U32, 4)],
        "keys of 2 and values of 4"),
    "another scale": ([("llama.attention.scale", F32, 0.01)], r"attention\.scale 0\.01"),
    "rope over half a head": ([("llama.attention.key_length", U32, 4), ("llama.rope.dimension_count", U32, 2)],
        "rope over 2 of 4"),
    "another rope": ([("llama.rope.scaling.type", STRING, "longrope")], "rope scaling 'longrope'"),
    "yarn with another mix": ([("llama.rope.scaling.type", STRING, "yarn"),
        ("llama.rope.scaling.yarn_ext_factor", F32, 0.5)], "yarn_ext_factor"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported(case: str, tmp_path: Path) -> None:
    pairs, message = UNSUPPORTED[case]
    (tmp_path / "m.gguf").write_bytes(raw_model(pairs))
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


INVALID: dict[str, tuple[list[tuple[str, int, Any]], str]] = {
    "architecture of a number": ([("general.architecture", U32, 1)], "general.architecture: seen 1, wanted a string"),
    "text for a number": ([("llama.block_count", STRING, "2")], "llama.block_count: seen '2'"),
    "no layers": ([("llama.block_count", U32, 0)], "llama.block_count: seen 0"),
    "absurd layers": ([("llama.block_count", U32, 2**32 - 1)], "llama.block_count: seen 4294967295"),
    "experts of text": ([("llama.expert_count", STRING, "8")], "expert_count: seen '8'"),
    "too many experts": ([("llama.expert_count", U32, 2**31)], "expert_count: seen 2147483648"),
    "experts without a router": (MIXTURE, "no layer with a router"),
    "nobody knows how many experts": ([("llama.expert_count", U32, 8)], "expert_used_count: seen nothing"),
    "heads that do not divide": ([("llama.attention.head_count", U32, 3)], "attention heads: seen 3"),
    "key-value heads that do not divide": ([("llama.attention.head_count_kv", U32, 3)], "key-value heads: seen 3"),
    "heads that differ by layer": ([("llama.attention.head_count_kv", 9, (U32, [1, 2]))], r"seen \[1, 2\]"),
    "a hidden size other than the embedding": ([("llama.embedding_length", U32, 8)], r"seen \[8, 4\], wanted \[8, 8\]"),
    "theta NaN": ([("llama.rope.freq_base", F32, math.nan)], "rope.freq_base: seen nan"),
    "epsilon NaN": ([("llama.attention.layer_norm_rms_epsilon", F32, math.nan)], "seen nan"),
    "more tokens than rows": ([("tokenizer.ggml.tokens", 9, (STRING, ["x"] * 9))],
        "seen 9 tokens, wanted at most the 8 rows"),
    "tokens of a number": ([("tokenizer.ggml.tokens", U32, 9)],
        "tokenizer.ggml.tokens: seen 9, wanted an array of strings"),
    "tokens of arrays": (
        [("tokenizer.ggml.tokens", 9, (9, [(U32, [1])])), ("tokenizer.ggml.token_type", 9, (5, [3]))],
        "seen a list of 1 value, wanted an array",
    ),
    "end id of text": ([("tokenizer.ggml.eos_token_id", STRING, "2")], "eos_token_id: seen '2'"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_figures_that_cannot_be(case: str, tmp_path: Path) -> None:
    pairs, message = INVALID[case]
    (tmp_path / "m.gguf").write_bytes(raw_model(pairs))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_vocabulary_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(
        gguf_bytes(
            [
                ("general.architecture", STRING, "llama"),
                ("llama.embedding_length", U32, 4),
                ("llama.attention.head_count", U32, 2),
            ]
        )
    )
    with pytest.raises(CheckpointError, match="a vocabulary without a model"):
        open_checkpoint(tmp_path / "m.gguf")


def test_two_tensors_of_one_meaning(tmp_path: Path) -> None:
    tensors = [("token_embd.weight", [4, 8], 0, 0), ("model.embed_tokens.weight", [4, 8], 0, 128)]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes([("general.architecture", STRING, "llama")], tensors, bytes(256)))
    with pytest.raises(CheckpointError, match=r"another tensor that means model\.embed_tokens\.weight"):
        open_checkpoint(tmp_path / "m.gguf")


def test_query_rows_that_are_no_heads(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "m.gguf", extra={"blk.2.attn_q.weight": np.ones((63, 64), np.float32)})
    with pytest.raises(CheckpointError, match=r"seen \[63, 64\], wanted 4 heads of 16 rows"):
        open_checkpoint(path)


def config_of(**keys: Any) -> GgufConfig:
    """The key-value pairs of a file of three blocks, by their names within the architecture."""
    fields = Fields(
        Path("m.gguf"), {"block_count": 3, **{key.replace("__", "."): value for key, value in keys.items()}}
    )
    return GgufConfig(fields, {}, {}, {}, "llama")


def test_figures_that_differ_between_layers() -> None:
    config = config_of(attention__head_count_kv=[4, 0, 2], feed_forward_length=8)
    assert config.per_layer("attention.head_count_kv", minimum=0) == (4, 0, 2)
    assert config.per_layer("feed_forward_length") == (8, 8, 8)
    assert config.per_layer("attention.head_count", 5) == (5, 5, 5)
    with pytest.raises(CheckpointError, match=r"attention\.head_count_kv: seen .*wanted a whole number from 1"):
        config.per_layer("attention.head_count_kv")
    with pytest.raises(CheckpointError, match=r"attention\.head_count: seen nothing"):
        config.per_layer("attention.head_count")
    for wrong in ([4, 2], [4, 2, True], [4, 2, -1], [4, 2, 2**31], [4, 2, 1.5], []):
        with pytest.raises(CheckpointError, match="or a list of 3"):
            config_of(feed_forward_length=wrong).per_layer("feed_forward_length", minimum=0)


def test_layers_that_a_file_marks() -> None:
    key = "attention.sliding_window_pattern"
    for value, marked in (
        ([True, False, True], (True, False, True)),
        ([0, 1, 1], (False, True, True)),
        (2, (True, False, True)),
        (0, (True, True, True)),
    ):
        assert config_of(attention__sliding_window_pattern=value).marked_layers(key) == marked
    assert config_of().marked_layers(key) is None
    for wrong in ([True], [True, False, 2], [True, False, "x"], -1, "x"):
        with pytest.raises(CheckpointError, match=r"attention\.sliding_window_pattern: seen"):
            config_of(attention__sliding_window_pattern=wrong).marked_layers(key)


def test_a_window_beyond_all_positions_is_cut_to_them() -> None:
    """A position and a window are added in the core, in 32 bits."""
    for told, window in ((0, None), (64, 64), (2**30, 2**30), (2**31 - 1, 2**30)):
        assert config_of(attention__sliding_window=told).window() == window


def test_blocks_that_predict_further_tokens_are_no_layers() -> None:
    config = config_of(
        nextn_predict_layers=1, feed_forward_length=[8, 4, 6], attention__sliding_window_pattern=[True, False, True]
    )
    assert config.layers == 2
    assert config.per_layer("feed_forward_length") == (8, 4)
    assert config.marked_layers("attention.sliding_window_pattern") == (True, False)
    with pytest.raises(CheckpointError, match="nextn_predict_layers: seen 3, wanted a whole number from 0 to 2"):
        _ = config_of(nextn_predict_layers=3).layers


def test_layers_that_differ_where_an_architecture_has_them_all_alike(tmp_path: Path) -> None:
    path, two = tmp_path / "m.gguf", ("llama.block_count", U32, 2)
    path.write_bytes(raw_model([two, ("llama.feed_forward_length", 9, (U32, [6, 6]))]))
    assert open_checkpoint(path).spec.intermediate_size == 6
    for key, values in (("feed_forward_length", [8, 6]), ("attention.head_count_kv", [2, 0])):
        path.write_bytes(raw_model([two, (f"llama.{key}", 9, (U32, values))]))
        with pytest.raises(UnsupportedError, match=rf"{key} that differs between layers \({min(values)} to"):
            open_checkpoint(path)
