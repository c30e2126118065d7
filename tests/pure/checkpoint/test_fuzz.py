"""Headers of both formats under fuzzing, with a ceiling on memory: whatever the bytes, only named errors come out.

What still opens is then used: figures are checked for sense and every tensor is decoded, so an offset that slipped
through is found.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.formats.gguf import read_gguf
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.spec import TensorEntry
from tests.checkpoints import (
    ARRAY,
    BOOL,
    F32,
    MIXTURES,
    STRING,
    TOYS,
    U8,
    U32,
    U64,
    gguf_bytes,
    make_folder,
    make_gguf,
    safetensors_bytes,
    toy_config,
)
from tests.memory import memory_headroom
from tests.mistral_folders import CASES, case_config, params_of, write_both

pytest.importorskip("gguf", reason="needs the gguf package to write files")

# The inputs are below 200 KB: anything that needs more followed a number it should not have believed.
HEADROOM = 256 * 2**20
EXAMPLES = int(os.environ.get("HOMENODE_FUZZ_EXAMPLES", "40"))
fuzz = settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

TINY = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
    "num_hidden_layers": 1,
}
TELLING = (
    0,
    1,
    2,
    7,
    31,
    255,
    256,
    2**16,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 32,
    2**64 - 1,
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small valid files to mutate."""
    folder = tmp_path_factory.mktemp("seeds")
    model = make_folder(folder / "hf", **TINY)
    gguf = make_gguf(folder / "m.gguf", matrix_type="Q8_0", **TINY)
    kinds = gguf_bytes(
        [("a", ARRAY, (ARRAY, [(U8, [1]), (STRING, ["x"])])), ("b", BOOL, True), ("general.alignment", U32, 64),
            ("c", ARRAY, (F32, [1.0] * 9))],
        [("t", [32, 2], 8, 0), ("u", [4], 99, 128)], bytes(200), alignment=64,
    )  # fmt: skip
    small = safetensors_bytes(
        {"a": ("F32", [2, 2], bytes(16)), "b": ("BF16", [3], bytes(6)), "c": ("F6_E2M3", [4], bytes(3))}, {"k": "v"}
    )
    return {
        "gguf": gguf.read_bytes(),
        "kinds": kinds,
        "safetensors": (model / "model.safetensors").read_bytes(),
        "small": small,
    }


def use(entries: dict[str, TensorEntry]) -> None:
    """Decode every tensor; a type nobody knows is the only excuse. A header that was taken must hold: no tensor may end
    early or overlap.
    """
    ends: dict[Path, int] = {}
    for entry in sorted(entries.values(), key=lambda e: (e.offset, e.nbytes)):
        assert ends.get(entry.file, 0) <= entry.offset and entry.offset + entry.nbytes <= entry.file.stat().st_size, (
            entry
        )
        ends[entry.file] = entry.offset + entry.nbytes
        rows, columns = math.prod(entry.shape[:-1]), entry.shape[-1] if entry.shape else 1
        assert not entry.dtype.bytes or entry.nbytes == rows * entry.dtype.row_bytes(columns), entry
        try:
            for _ in iter_decoded_rows(entry):
                pass
        except UnsupportedError as error:
            assert not entry.dtype.bytes, error
        except CheckpointError as error:
            raise AssertionError(f"a header was taken that does not hold: {error}") from error


def survive(action: Callable[[], object]) -> None:
    """Run under the ceiling; errors must be ours, short, and name what was seen and wanted."""
    with memory_headroom(HEADROOM):
        try:
            action()
        except CheckpointError as error:
            assert "seen" in error.message and "wanted" in error.message and len(error.message) < 2000
        except UserError as error:
            assert "homenode" in error.message and len(error.message) < 2000


def open_gguf(path: Path) -> None:
    found = read_gguf(path)
    use({n: TensorEntry(n, t.dtype, t.shape, path, t.offset, t.nbytes) for n, t in found.tensors.items()})
    checkpoint = open_checkpoint(path)
    assert checkpoint.spec.vocab_size > 0 and checkpoint.spec.num_heads % checkpoint.spec.num_kv_heads == 0


def open_folder(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    use(checkpoint.tensors)
    assert all(entry.file.parent == folder for entry in checkpoint.tensors.values())
    assert checkpoint.spec.num_layers <= 10_000 and checkpoint.spec.head_dim > 0


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[float, str, bytes]]:
    """Where (as a share of the header), how, and with what to change a file."""
    number = st.sampled_from(TELLING).map(lambda n: struct.pack("<Q", n))
    piece = st.one_of(st.binary(min_size=1, max_size=1), number, number.map(lambda b: b[:4]), st.binary(max_size=12))
    return draw(
        st.lists(
            st.tuples(st.floats(0, 1), st.sampled_from(("over", "insert", "cut", "end")), piece), min_size=1, max_size=4
        )
    )


def mutated(content: bytes, changes: list[tuple[float, str, bytes]], header: int) -> bytes:
    for share, how, piece in changes:
        at = int(share * min(header, len(content)))
        if how == "over":
            content = content[:at] + piece + content[at + len(piece) :]
        elif how == "insert":
            content = content[:at] + piece + content[at:]
        elif how == "cut":
            content = content[:at] + content[at + len(piece) :]
        else:
            content = content[:at]
    return content


@fuzz
@given(changes=mutations(), seed=st.sampled_from(("gguf", "kinds")))
def test_mutated_gguf(
    changes: list[tuple[float, str, bytes]],
    seed: str,
    seeds: dict[str, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(mutated(seeds[seed], changes, 2200 if seed == "gguf" else 320))
    survive(lambda: open_gguf(path))


@fuzz
@given(changes=mutations(), seed=st.sampled_from(("safetensors", "small")))
def test_mutated_safetensors(
    changes: list[tuple[float, str, bytes]],
    seed: str,
    seeds: dict[str, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(mutated(seeds[seed], changes, 1200 if seed == "safetensors" else 240))
    survive(lambda: use(read_safetensors(path)))


@fuzz
@given(body=st.binary(max_size=300), counts=st.tuples(st.sampled_from(TELLING), st.sampled_from(TELLING)))
def test_random_bytes_behind_a_gguf_header(
    body: bytes, counts: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(gguf_bytes(counts=counts, alignment=1) + body)
    survive(lambda: open_gguf(path))
    path.write_bytes(body)
    survive(lambda: open_gguf(path))


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from([*TELLING, -1, 10**400]), st.floats(),
        st.text(max_size=8),
        st.sampled_from(["F32", "BF16", "yarn", "llama3", "linear", "sliding_attention", "..", "/",
            "model.safetensors"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=6),
                st.sampled_from(["rope_type", "type", "factor", "rope_theta", "dtype", "shape", "data_offsets"])),
                inner, max_size=4
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@fuzz
@given(entries=st.dictionaries(st.text(max_size=6), JSON, max_size=4), data=st.binary(max_size=40))
def test_safetensors_headers_of_any_json(
    entries: dict[str, Any], data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(entries).encode()
    path = tmp_path_factory.getbasetemp() / "json.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    survive(lambda: use(read_safetensors(path)))


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "I64"]),
        "shape": st.lists(st.one_of(st.integers(-1, 6), st.sampled_from(TELLING)), max_size=3),
        "data_offsets": st.lists(st.one_of(st.integers(-1, 40), st.sampled_from(TELLING)), min_size=1, max_size=3),
    }
)


@fuzz
@given(entries=st.dictionaries(st.sampled_from("abc"), ENTRY, max_size=3), size=st.integers(0, 40))
def test_safetensors_entries_of_any_shape(
    entries: dict[str, Any], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(entries).encode()
    path = tmp_path_factory.getbasetemp() / "entries.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    survive(lambda: use(read_safetensors(path)))


KEYS = [
    *toy_config("mistral"),
    *MIXTURES["mixtral"],
    *MIXTURES["qwen2_moe"],
    *MIXTURES["qwen3_moe"],
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "use_sliding_window",
    "max_window_layers",
    "partial_rotary_factor",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder") / "hf", shards=2, **TINY)


@fuzz
@given(
    architecture=st.sampled_from(sorted(TOYS)),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
    generation=st.dictionaries(st.sampled_from(["eos_token_id", "temperature", "top_k", "top_p"]), JSON, max_size=2),
)
def test_configurations_of_any_json(
    architecture: str, changes: dict[str, Any], generation: dict[str, Any], model: Path
) -> None:
    (model / "config.json").write_text(json.dumps(toy_config(architecture, **TINY) | changes))
    (model / "generation_config.json").write_text(json.dumps(generation))
    survive(lambda: open_folder(model))


PARAMS = (
    "multimodal",
    "model_type",
    "activation",
    "quantization",
    "quantization_config",
    "yarn",
    "moe",
    "sliding_window",
)


@pytest.fixture(scope="module")
def mistral_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral")
    for name in CASES:
        write_both(folder / name, name)
    return folder


@fuzz
@given(
    name=st.sampled_from(sorted(CASES)),
    changes=st.dictionaries(st.integers(0, 40), JSON, max_size=3),
    inner=st.dictionaries(st.sampled_from(("moe", "yarn", "llama_4_scaling")), JSON, max_size=1),
)
def test_params_of_any_json(name: str, changes: dict[int, Any], inner: dict[str, Any], mistral_folders: Path) -> None:
    folder, params = mistral_folders / name / "mistral", params_of(name, case_config(name))
    keys = [*params, *PARAMS]
    params |= {keys[number % len(keys)]: value for number, value in changes.items()}
    for table, value in inner.items():
        if isinstance(params.get(table), dict) and params[table]:
            params[table] |= {sorted(params[table])[len(changes) % len(params[table])]: value}
    (folder / "params.json").write_text(json.dumps(params))
    survive(lambda: open_checkpoint(folder))


PREFIXES = ("", "./", "../hf/", "a/../", "/", ".././hf/../hf/")


@fuzz
@given(
    moved=st.dictionaries(
        st.sampled_from(["lm_head.weight", "model.norm.weight"]), st.sampled_from(PREFIXES), max_size=2
    ),
    added=st.dictionaries(st.sampled_from(["lm_head.weight", "x", ""]), JSON, max_size=2),
    whole=st.one_of(st.none(), st.none(), JSON),
)
def test_indexes_of_any_json(moved: dict[str, str], added: dict[str, Any], whole: Any, model: Path) -> None:
    """The valid index with shards spelt in ways that may leave the folder, with entries of any JSON, or replaced by any
    JSON.
    """
    (model / "generation_config.json").unlink(missing_ok=True)
    (model / "config.json").write_text(json.dumps(toy_config(**TINY)))
    index = model / "model.safetensors.index.json"
    valid = index.read_bytes()
    weight_map = json.loads(valid)["weight_map"]
    weight_map |= {tensor: prefix + weight_map[tensor] for tensor, prefix in moved.items()} | added
    try:
        index.write_text(json.dumps({"weight_map": weight_map} if whole is None else whole))
        survive(lambda: open_folder(model))
    finally:
        index.write_bytes(valid)


VALUES = st.one_of(
    st.tuples(st.just(U32), st.integers(0, 2**32 - 1)), st.tuples(st.just(U64), st.sampled_from(TELLING)),
    st.tuples(st.just(F32), st.floats(width=32)),
    st.tuples(st.just(STRING), st.text(max_size=8)), st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.just(ARRAY), st.lists(st.integers(0, 2**32 - 1), max_size=4).map(lambda v: (U32, v))),
    st.tuples(st.just(ARRAY), st.lists(st.text(max_size=3), max_size=4).map(lambda v: (STRING, v))),
    st.tuples(st.just(ARRAY), st.sampled_from([(ARRAY, [(U32, [1])]), (ARRAY, [(STRING, ["x"])] * 2), (F32, [3.0]),
        (U32, [3])])),
)  # fmt: skip
FIGURES = (
    "embedding_length", "attention.head_count", "attention.head_count_kv", "block_count", "context_length",
    "feed_forward_length",
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scaling.type",
    "rope.scaling.factor",
    "attention.key_length", "attention.value_length", "attention.sliding_window", "attention.scale", "expert_count",
)  # fmt: skip
VALID: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"), "llama.embedding_length": (U32, 4),
    "llama.attention.head_count": (U32, 2),
    "llama.block_count": (U32, 1), "llama.context_length": (U32, 16), "llama.feed_forward_length": (U32, 8),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
}  # fmt: skip


@fuzz
@given(
    figures=st.dictionaries(st.sampled_from(FIGURES).map("llama.".__add__), VALUES, max_size=4),
    tokenizer=st.dictionaries(
        st.sampled_from(["tokens", "token_type", "eos_token_id", "bos_token_id"]).map("tokenizer.ggml.".__add__),
        VALUES,
        max_size=2,
    ),
    split=st.dictionaries(
        st.sampled_from(["split.count", "split.no", "general.alignment", "general.sampling.temp"]), VALUES, max_size=1
    ),
)
def test_gguf_metadata_of_any_kind(
    figures: dict[str, tuple[int, Any]],
    tokenizer: dict[str, tuple[int, Any]],
    split: dict[str, tuple[int, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pairs = [(key, kind, value) for key, (kind, value) in (VALID | figures | tokenizer | split).items()]
    path = tmp_path_factory.getbasetemp() / "metadata.gguf"
    path.write_bytes(gguf_bytes(pairs, [("token_embd.weight", [4, 8], 0, 0)], bytes(160)))
    survive(lambda: open_gguf(path))


def test_the_ceiling_holds() -> None:
    """The fuzzing above would notice: an allocation beyond the headroom raises MemoryError, which nobody turns into an
    error of ours.
    """
    with pytest.raises(MemoryError), memory_headroom(HEADROOM):
        bytes(2 * HEADROOM)


def test_the_seeds_are_valid(seeds: dict[str, bytes], tmp_path: Path, model: Path) -> None:
    """Mutations of something broken already would test little."""
    for name in ("gguf", "kinds"):
        (tmp_path / name).write_bytes(seeds[name])
        assert read_gguf(tmp_path / name).tensors
    open_checkpoint(tmp_path / "gguf")
    for name in ("safetensors", "small"):
        (tmp_path / name).write_bytes(seeds[name])
        assert read_safetensors(tmp_path / name)
    (model / "config.json").write_text(json.dumps(toy_config(**TINY)))
    (model / "generation_config.json").unlink(missing_ok=True)
    open_folder(model)
    (tmp_path / "valid").write_bytes(
        gguf_bytes([(k, *v) for k, v in VALID.items()], [("token_embd.weight", [4, 8], 0, 0)], bytes(160))
    )
    open_checkpoint(tmp_path / "valid")
