"""Folders quantised by others: the very values come out, whole and in parts, and what does not go together is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.coded_matrices import with_coded_matrices
from homenode.model.formats.coded_rows import decoded, write_blocks
from homenode.model.formats.fallback_decode import FloatArray, decode_rows
from homenode.model.formats.fields import Fields
from homenode.model.formats.quantisation import quantisation_of
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.formats.tensor_parts import columns_of, rows_of, transposed
from homenode.model.spec import TensorEntry
from tests.memory import memory_headroom
from tests.quantised_folders import FORMS, Form, Stored, is_quantised, quantised, write_folder, write_quantised

FIRST = "model.layers.0.self_attn.q_proj"
SECOND = "model.layers.0.mlp.down_proj"
HALF_STEP = 2**-11  # of what is rounded to float16


def blocks_of(entry: TensorEntry, rows: tuple[int, int], columns: tuple[int, int]) -> FloatArray:
    """What the blocks stand for that are written for some rows and columns."""
    fd = os.memfd_create("blocks")
    try:
        write_blocks(entry, rows, columns, fd)
        data = os.pread(fd, 1 << 24, 0)
    finally:
        os.close(fd)
    return decode_rows(data, entry.dtype, (rows[1] - rows[0], columns[1] - columns[0]))


def read(entry: TensorEntry, rows: tuple[int, int], columns: tuple[int, int]) -> FloatArray:
    return decoded(entry, rows, columns) if entry.dtype.block == 1 else blocks_of(entry, rows, columns)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_values_it_stands_for(tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    values = write_quantised(tmp_path, form)
    tensors = open_checkpoint(tmp_path).tensors
    assert tensors.keys() == values.keys()
    for tensor, wanted in values.items():
        entry = tensors[tensor]
        assert entry.shape == wanted.shape and (entry.coded is not None) == is_quantised(tensor)
        if entry.coded is None:
            continue
        assert entry.dtype.name == form.keeps and entry.nbytes == entry.shape[0] * entry.dtype.row_bytes(entry.shape[1])
        rows, columns = entry.shape
        found = read(entry, (0, rows), (0, columns))
        # Zero points times scales are kept as float16; they may be larger than any weight, but not twice as large.
        if form.keeps == "Q4_1":
            assert np.abs(found - wanted).max() <= HALF_STEP * 2 * np.abs(wanted).max() and found.std() > 0
        else:
            assert np.array_equal(found, wanted)
        assert np.array_equal(decoded(entry, (0, rows), (0, columns)), wanted)
        assert np.array_equal(read(entry, (5, rows - 3), (32, 64)), found[5 : rows - 3, 32:64])


@pytest.mark.parametrize("name", FORMS)
def test_rows_are_read_as_columns(tmp_path: Path, name: str) -> None:
    """As the matrices of heads lie one below the other in one that is read turned, and beside it as it lies."""
    write_quantised(tmp_path, FORMS[name])
    entry = open_checkpoint(tmp_path).tensors[f"{FIRST}.weight"]
    wanted = decoded(entry, (0, entry.shape[0]), (0, entry.shape[1]))
    part = columns_of(transposed(entry, "turned"), "part", 12, 20)
    assert part.shape == (entry.shape[1], 20) and part.dtype.block == 1
    assert np.array_equal(decoded(part, (3, 50), (2, 19)), wanted[14:31].T[3:50])
    below = rows_of(entry, "below", 32, 12)
    assert np.array_equal(decoded(below, (1, 12), (0, 32)), wanted[33:44, :32])


def test_rows_whose_last_word_is_not_full(tmp_path: Path) -> None:
    form = replace(FORMS["packed 6 bits"], group=-1)
    values = np.random.default_rng(1).standard_normal((8, 100)).astype(np.float32)
    tensors, wanted = quantised(form, FIRST, values)
    entry = composed(tmp_path, form, tensors)
    assert entry.shape == (8, 100) and np.array_equal(read(entry, (0, 8), (0, 100)), wanted)


@pytest.mark.parametrize("symmetric", [True, False])
def test_matrices_that_are_narrower_than_a_group(tmp_path: Path, symmetric: bool) -> None:
    """Codes of 1 to 4 bits of eight columns are one word: the configuration tells which they are."""
    form = replace(FORMS["packed"], group=-1, symmetric=symmetric)
    values = np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32)
    tensors, wanted = quantised(form, FIRST, values)
    entry = composed(tmp_path, form, tensors)
    assert np.array_equal(read(entry, (0, 12), (0, 8)), wanted)


def composed(folder: Path, form: Form, tensors: Stored) -> TensorEntry:
    """The matrix of a folder that has no other."""
    write_folder(folder, {}, tensors)
    quantisation = quantisation_of(Fields(folder / "config.json", {"quantization_config": form.config}))
    assert quantisation is not None
    (entry,) = with_coded_matrices(read_safetensors(folder / "model.safetensors"), quantisation).values()
    return entry


def test_tensors_for_rounding_activations_are_left_out(tmp_path: Path) -> None:
    form = FORMS["8-bit floats"]
    tensors, _ = quantised(form, FIRST, np.ones((8, 64), np.float32))
    scale = ("F32", (1,), np.ones(1, np.float32).tobytes())
    names = (f"{FIRST}.input_scale", f"{FIRST}.k_scale", "model.kv_scale", f"{FIRST}.activation_scale")
    entry = composed(tmp_path, form, tensors | dict.fromkeys(names, scale))
    assert entry.name == f"{FIRST}.weight"


def test_modules_that_gptq_names_without_settings_of_their_own(tmp_path: Path) -> None:
    """As Qwen 3.5 is published: left out, named for nothing, or with the settings of all."""
    table: dict[str, Any] = FORMS["gptq"].config
    left = {"-:.*attn.*": {}, "-:.*shared_expert.*": {"bits": 8}, "lm_head": {}, "model.embed_tokens": None}
    for more in ({}, {"+:.*down.*": {"bits": table["bits"], "group_size": table["group_size"], "desc_act": True}}):
        found = quantisation_of(Fields(tmp_path, {"quantization_config": table | {"dynamic": left | more}}))
        assert found is not None and found.widths == (table["bits"],) and found.symmetric


OWN_SETTINGS = {
    "wider codes": {"bits": 8},
    "narrower codes": {"bits": 2},
    "larger groups": {"group_size": 64},
    "a group for a row": {"group_size": -1},
    "zero points": {"sym": False},
    "all of these": {"bits": 3, "group_size": 64, "sym": False},
}


@pytest.mark.parametrize("case", OWN_SETTINGS)
@pytest.mark.parametrize("name", ["gptq", "gptq, second version", "AutoRound", "AutoRound for GPTQModel"])
def test_modules_with_settings_of_their_own(tmp_path: Path, name: str, case: str) -> None:
    """Those of `dynamic` (GPTQ) and `extra_config` (AutoRound), which the shapes of the tensors tell apart."""
    form, own = FORMS[name], OWN_SETTINGS[case]
    renamed = {"bits": "bits", "group_size": "group", "sym": "symmetric"}
    other = replace(form, **{renamed[key]: value for key, value in own.items()})
    values = np.random.default_rng(5).standard_normal((64, 128)).astype(np.float32)
    tensors: Stored = {}
    wanted = {}
    for module, kind in ((FIRST, form), (SECOND, other)):
        parts, wanted[f"{module}.weight"] = quantised(kind, module, values)
        tensors |= parts
    key = "extra_config" if form.packing else "dynamic"
    table = form.config | {key: {SECOND if form.packing else f"+:{SECOND}": own}}
    write_folder(tmp_path, {}, tensors)
    quantisation = quantisation_of(Fields(tmp_path / "config.json", {"quantization_config": table}))
    assert quantisation is not None
    found = with_coded_matrices(read_safetensors(tmp_path / "model.safetensors"), quantisation)
    assert found.keys() == wanted.keys()
    for tensor, entry in found.items():
        assert np.array_equal(decoded(entry, (0, 64), (0, 128)), wanted[tensor])
        if entry.dtype.name in ("Q4_0", "Q8_0"):
            assert np.array_equal(read(entry, (0, 64), (0, 128)), wanted[tensor])


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ({}, "AutoRound"),
        ({"packing_format": "auto"}, "AutoRound"),
        ({"packing_format": "auto_round:gptq"}, "AutoRound"),
        ({"backend": "auto"}, "AutoRound"),
        ({"backend": "auto_round:gptq:exllamav2"}, "AutoRound"),
        ({"backend": "autoround:exllamav2"}, "AutoRound for GPTQModel"),
        ({"packing_format": "auto_round"}, "AutoRound for GPTQModel"),
        ({"packing_format": "auto_round:awq"}, "AutoRound as AWQ"),
    ],
)
@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
def test_auto_round_calls_a_form_by_several_names(
    tmp_path: Path, table: dict[str, Any], name: str, method: str
) -> None:
    wanted = quantisation_of(Fields(tmp_path, {"quantization_config": FORMS[name].config}))
    told = {"quant_method": method, "bits": 4, "group_size": 32} | table
    assert wanted is not None and quantisation_of(Fields(tmp_path, {"quantization_config": told})) == wanted


def test_modules_of_model_opt_may_be_of_two_kinds(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    tensors: Stored = {}
    wanted, modules = {}, {}
    for form, kind in (("8-bit floats by ModelOpt", "FP8"), ("4-bit floats by ModelOpt", "NVFP4")):
        parts, wanted[f"{kind}.weight"] = quantised(FORMS[form], kind, values)
        tensors |= parts
        modules[kind] = {"quant_algo": kind}
    write_folder(tmp_path, {}, tensors)
    table: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": modules}
    quantisation = quantisation_of(Fields(tmp_path, {"quantization_config": table}))
    assert quantisation is not None
    found = with_coded_matrices(read_safetensors(tmp_path / "model.safetensors"), quantisation)
    assert found.keys() == wanted.keys()
    for name, entry in found.items():
        assert np.array_equal(read(entry, (0, 16), (0, 64)), wanted[name])
    modules["other"] = {"quant_algo": "W4A8_AWQ"}
    with pytest.raises(UnsupportedError, match="W4A8_AWQ"):
        quantisation_of(Fields(tmp_path, {"quantization_config": table}))


@pytest.mark.parametrize("kind", ["e4m3", "e4m3fn", "float8_e4m3fn"])
def test_kinds_of_8_bit_floats_have_several_names(tmp_path: Path, kind: str) -> None:
    config = {"quantization_config": FORMS["8-bit floats"].config | {"fmt": kind}}
    found = quantisation_of(Fields(tmp_path, config))
    assert found is not None and found.method == "float8"
    config["quantization_config"]["fmt"] = "e5m2"
    with pytest.raises(UnsupportedError, match="e5m2"):
        quantisation_of(Fields(tmp_path, config))


Change = Callable[[Stored], Any]


def without(part: str) -> Change:
    return lambda tensors: tensors.pop(f"{FIRST}.{part}")


def reshaped(part: str, *shape: int) -> Change:
    def change(tensors: Stored) -> None:
        kind, _, data = tensors[f"{FIRST}.{part}"]
        tensors[f"{FIRST}.{part}"] = (
            kind,
            shape,
            (data * 99)[: int(np.prod(shape)) * (len(data) // max(1, int(np.prod(tensors[f"{FIRST}.{part}"][1]))))],
        )

    return change


def filled(part: str, value: float) -> Change:
    def change(tensors: Stored) -> None:
        kind, shape, _ = tensors[f"{FIRST}.{part}"]
        numbers = {"I32": np.int32, "I64": np.int64, "F32": np.float32, "F16": np.float16}[kind]
        tensors[f"{FIRST}.{part}"] = (kind, shape, np.full(shape, value, numbers).tobytes())

    return change


def retyped(part: str, kind: str) -> Change:
    def change(tensors: Stored) -> None:
        tensors[f"{FIRST}.{part}"] = (kind, *tensors[f"{FIRST}.{part}"][1:])

    return change


BROKEN: dict[str, tuple[str, Change, str]] = {
    "no scales": ("gptq", without("scales"), "q_proj.scales: seen none, wanted it beside .*q_proj.qweight"),
    "no zero points": ("awq", without("qzeros"), "q_proj.qzeros: seen none"),
    "scales of fewer rows": ("gptq", reshaped("scales", 2, 32), r"q_proj.scales: seen \[2, 32\], wanted \[2, 64\]"),
    "scales of other groups": ("awq", reshaped("scales", 4, 64), r"q_proj.scales: seen \[4, 64\], wanted \[2, 64\]"),
    "zero points of fewer rows": ("gptq", reshaped("qzeros", 2, 4), r"q_proj.qzeros: seen \[2, 4\], wanted \[2, 8\]"),
    "codes of one dimension": ("gptq", reshaped("qweight", 512), "q_proj.qweight: seen \\[512\\], wanted 2 dimensions"),
    "no codes": ("gptq", reshaped("qweight", 0, 64), "none empty"),
    "codes as floats": ("gptq", retyped("qweight", "F32"), "q_proj.qweight: seen F32, wanted I32 or U32"),
    "groups that are not there": ("gptq", filled("g_idx", 2), "q_proj.g_idx: seen 2 to 2, wanted 0 to 1"),
    "groups of fewer columns": ("gptq", reshaped("g_idx", 32), r"q_proj.g_idx: seen \[32\], wanted \[64\]"),
    "a matrix twice": ("gptq", lambda tensors: tensors.update({f"{FIRST}.weight": ("F32", (1,), bytes(4))}),
        "q_proj.weight: seen more than one"),
    "another shape written": ("packed", filled("weight_shape", 63), "weight_shape: seen 63 and 63, wanted 64 rows"),
    "a huge shape written": ("packed", filled("weight_shape", 2**62), "weight_shape: seen"),
    "no shape written": ("packed", without("weight_shape"), "weight_shape: seen none"),
    "scales of no block": ("packed", reshaped("weight_scale", 64, 3),
        r"seen \[64, 3\], wanted one for each row, one for each 1 x 32 of 64 x 64"),
    "floats without scales": ("8-bit floats", without("weight_scale_inv"), "weight_scale: seen none"),
    "4-bit floats without a scale of all": ("4-bit floats", without("weight_global_scale"),
        "weight_global_scale: seen none"),
    "4-bit floats with several scales of all": ("4-bit floats", reshaped("weight_global_scale", 2),
        r"seen \[2\], wanted one number"),
    "4-bit floats with other groups": ("4-bit floats, powers of two", reshaped("weight_scale", 64, 4),
        r"seen \[64, 4\], wanted \[64, 2\]"),
    "4-bit floats with wide scales": ("4-bit floats by ModelOpt", retyped("weight_scale", "I8"),
        "seen I8, wanted F8_E4M3 or F8_E8M0 or U8"),
    "floats with other blocks": ("8-bit floats", reshaped("weight_scale_inv", 3, 1),
        r"seen \[3, 1\], wanted .*one for each 48 x 64"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_parts_that_do_not_go_together(tmp_path: Path, case: str) -> None:
    name, change, message = BROKEN[case]
    tensors, _ = quantised(FORMS[name], FIRST, np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    change(tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        composed(tmp_path, FORMS[name], tensors)
    assert "model.safetensors" in caught.value.message


def test_zero_points_other_than_the_configuration_says(tmp_path: Path) -> None:
    form = FORMS["gptq"]
    tensors, _ = quantised(
        replace(form, symmetric=False), FIRST, np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    )
    with pytest.raises(
        CheckpointError, match=r"q_proj.qzeros: seen zero points from .* wanted 8, as the configuration says sym"
    ):
        read(composed(tmp_path, form, tensors), (0, 64), (0, 64))


def test_scales_that_float16_cannot_hold(tmp_path: Path) -> None:
    form = FORMS["packed"]
    tensors, _ = quantised(form, FIRST, np.full((64, 64), 1e5, np.float32))
    entry = composed(
        tmp_path,
        form,
        tensors | {f"{FIRST}.weight_scale": ("F32", (64, 2), np.full((64, 2), 1e5, np.float32).tobytes())},
    )
    with pytest.raises(CheckpointError, match=r"scales of .*q_proj.weight: seen 100000, wanted at most 65504"):
        read(entry, (0, 64), (0, 64))


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "bitsandbytes"}, "quantised by 'bitsandbytes' .*homenode reads gptq, awq, fp8"),
    "no method": ({"bits": 4}, "quantised by 'unnamed'"),
    "gptq in another form": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "form 'marlin'"),
    "AutoRound in another form": (
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:llm_compressor"},
        "AutoRound weights in the form 'auto_round:llm_compressor'",
    ),
    "AutoRound of floats": (
        {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq", "data_type": "mx_fp"},
        "of the kind 'mx_fp'",
    ),
    "AutoRound as AWQ of other bits": (
        {
            "quant_method": "auto-round",
            "bits": 4,
            "packing_format": "auto_round:auto_awq",
            "extra_config": {"lm_head": {"bits": 8}},
        },
        "AutoRound weights of 4 and 8 bits in the form 'auto_round:auto_awq'",
    ),
    "awq in another form": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "form 'gemv'"),
    "awq of other bits": ({"quant_method": "awq", "bits": 8}, "AWQ weights of 8 bits"),
    "floats of another kind": ({"quant_method": "fp8", "fmt": "e5m2"}, "kind 'e5m2'"),
    "compressed in another form": ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "'marlin-24'"),
    "ModelOpt of another kind": (
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        "ModelOpt weights of the kind 'W4A8_AWQ'",
    ),
    "compressed and sparse": (
        {"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": {"format": "sparse-24-bitmask"}},
        "with sparsity",
    ),
    "compressed and transformed": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "transform_config": {"config_groups": {"R1": {}}},
        },
        "with transforms",
    ),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_is_not_read_is_said_by_name(tmp_path: Path, case: str) -> None:
    config, message = UNSUPPORTED[case]
    write_quantised(tmp_path, FORMS["gptq"])
    whole = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(UnsupportedError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert "config.json" in caught.value.message and "GGUF" in caught.value.message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq"}, r"quantization_config\.bits: seen nothing"),
        ({"quant_method": "gptq", "bits": 9}, r"bits: seen 9, wanted a whole number from 2 to 8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -2}, "group_size: seen -2"),
        ({"quant_method": "gptq", "bits": 4, "sym": "yes"}, "sym: seen 'yes'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {"bits": 9}}}, r"dynamic\.x\.bits: seen 9"),
        ({"quant_method": "auto-round", "bits": 0}, r"quantization_config\.bits: seen 0"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": [1]}, "extra_config: seen"),
        (
            {"quant_method": "auto-round", "bits": 4, "extra_config": {"x": {"group_size": -2}}},
            r"extra_config\.x\.group_size: seen -2",
        ),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"x": {"bits": 10**30}}}, r"x\.bits: seen 1000"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size: seen \\[128\\]"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": 4}}, "group_0: seen 4, wanted an object"),
        ([1], "quantization_config: seen"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, config: Any, message: str) -> None:
    write_quantised(tmp_path, FORMS["gptq"])
    whole = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


SAME_WIDTH = {
    "I32": ("U32", "F32"),
    "F16": ("BF16", "I16"),
    "F32": ("I32",),
    "I64": ("F64",),
    "I8": ("F8_E4M3", "U8"),
    "F8_E4M3": ("I8", "U8"),
    "BF16": ("F16",),
}
NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 3, 7, 16, 31, 64, 128, 2**31 - 1, 2**40, 1.5, True, None, "x", [], [1, 1], [128, 128], {}]
)
EXAMPLES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "40"))


def reshape(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many elements."""
    left, sizes = int(np.prod(shape)), []
    for _ in range(draw(st.integers(0, 2))):
        size = draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        sizes.append(size)
        left //= size
    return (*sizes, left)


@st.composite
def changed_folders(draw: st.DrawFn) -> tuple[dict[str, Any], Stored]:
    """A matrix of any form, of which some is not as it should be: what config.json says, or tensors' shapes, types and
    values.
    """
    form = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    tensors, _ = quantised(form, FIRST, np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32))
    config = json.loads(json.dumps(form.config))
    for _ in range(draw(st.integers(1, 3))):
        table = config
        while (
            isinstance(inner := table.get(key := draw(st.sampled_from(sorted(table)))), dict)
            and inner
            and draw(st.booleans())
        ):
            table = inner
        if draw(st.booleans()) and key not in ("quant_method", "format"):
            table[key] = draw(NUMBERS)
        name = draw(st.sampled_from(sorted(tensors)))
        kind, shape, data = tensors[name]
        match draw(st.integers(0, 4)):
            case 0:
                tensors[name] = (kind, reshape(draw, shape), data)
            case 1:
                tensors[name] = (draw(st.sampled_from(SAME_WIDTH.get(kind, (kind,)))), shape, data)
            case 2:
                tensors[name] = (kind, shape, draw(st.binary(min_size=1, max_size=9)) * len(data))
                tensors[name] = (kind, shape, tensors[name][2][: len(data)])
            case 3 if len(tensors) > 1:
                del tensors[name]
    return config, tensors


@settings(
    max_examples=EXAMPLES * 3, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
@given(changed_folders())
def test_whatever_is_in_a_folder_only_named_errors_come_out(
    tmp_path: Path, given_folder: tuple[dict[str, Any], Stored]
) -> None:
    config, tensors = given_folder
    write_folder(tmp_path, {}, tensors)
    with memory_headroom(64 * 2**20):
        try:
            quantisation = quantisation_of(Fields(tmp_path / "config.json", {"quantization_config": config}))
            assert quantisation is not None
            entries = with_coded_matrices(read_safetensors(tmp_path / "model.safetensors"), quantisation)
            for entry in entries.values():
                if entry.coded:
                    values = read(entry, (0, entry.shape[0]), (0, entry.shape[1]))
                    assert values.shape == entry.shape
        except (CheckpointError, UnsupportedError) as error:
            assert len(error.message) < 1000
