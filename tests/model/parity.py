"""An architecture beside transformers: a random toy model of its class as a folder and as a GGUF file gives the same
logits and greedy tokens.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state_mixers import ScanSpec
from homenode.model.weights.load import load_model
from tests.checkpoints import interleave_heads, write_figures
from tests.model.driver import Driver
from tests.model.transformers_models import SIZES, check_greedy, logprobs, make_model, prompts, quiet_and_on_one_thread

STEPS = 16
BOUND = 1e-5  # of the spread of log-probabilities: two orders of float32 summation
LEAST_LEAD = 1e-4  # of a greedy token over the next best, so that another order of summation cannot change it


@dataclass(frozen=True)
class Case:
    """A toy model. `kind`: its `model_type` in transformers; `changes`: to the configuration; `seed`: of its weights.

    `gguf_keys`: what its GGUF file says besides what every file does, without the architecture in front; `gguf_name`:
    what that calls the architecture, where not `kind`; `interleaved`: the converter reorders the rows of q and k.
    `class_name`: what published models call the class, where transformers saves another name.
    """

    kind: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    gguf_keys: Mapping[str, Any] = field(default_factory=dict)
    interleaved: bool = False
    seed: int = 0
    gguf_name: str = ""
    class_name: str = ""
    bound: float = BOUND
    gguf_tensors: Mapping[str, Any] = field(default_factory=dict)  # that are no parameter: their numbers
    gguf_joined: Mapping[str, str] = field(default_factory=dict)  # a parameter -> the one whose rows it stands before


_MADE: dict[str, tuple[TemporaryDirectory[str], Any]] = {}  # what each toy is saved to, and the model


def _made(case: Case, folder: Path) -> Any:
    """The model that transformers has, saved as published ones are. It is made once, for all backends and formats."""
    key = repr((case.kind, case.changes, case.seed))
    if key not in _MADE:
        saved = TemporaryDirectory()
        _MADE[key] = saved, make_model(case.kind, deepcopy(case.changes), Path(saved.name), seed=case.seed)
    saved, theirs = _MADE[key]
    shutil.copytree(saved.name, folder, dirs_exist_ok=True)
    if case.class_name:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [case.class_name]}))
    return theirs


def check_folder(case: Case, folder: Path, backend: Backend) -> None:
    """Logits and greedy tokens of the folder that transformers saves."""
    with quiet_and_on_one_thread():
        check_file(folder, _made(case, folder), backend, case.bound)


def check_gguf(case: Case, folder: Path, backend: Backend) -> None:
    """Logits and greedy tokens of the same model as a GGUF file, with the names that the gguf package has for its
    tensors.
    """
    with quiet_and_on_one_thread():
        theirs = _made(case, folder)
        check_file(write_gguf(case, theirs, folder / "model.gguf"), theirs, backend, case.bound)


def check_stacked_gguf(case: Case, folder: Path, backend: Backend) -> None:
    """The same of a GGUF file with the tensors that the parameter table names, those of experts stacked."""
    with quiet_and_on_one_thread():
        theirs = _made(case, folder)
        check_file(write_stacked_gguf(case, folder, folder / "model.gguf"), theirs, backend, case.bound)


def _as_floats(_name: str, values: FloatArray) -> tuple[Any, str]:
    return values, "F32"


def write_stacked_gguf(
    case: Case,
    folder: Path,
    file: Path,
    store: Callable[[str, FloatArray], tuple[Any, str]] = _as_floats,
    names: Mapping[str, str] | None = None,
) -> Path:
    """The model of a folder as a GGUF file: what the folder is read to, under the names of the table. `store`: of a
    tensor's name and values, what is written for it, and of which type; all as it is, as F32, unless given. `names`:
    parts of a layer that the file calls otherwise than the table.
    """
    import gguf

    model = load_model(open_checkpoint(folder), ReferenceBackend())
    name = case.gguf_name or case.kind
    writer = gguf.GGUFWriter(file, name)
    spec = model.spec
    config = {"model_type": case.kind, "head_dim": spec.head_dim, "rms_norm_eps": spec.norm_eps}
    write_figures(writer, SIZES | config | {"rope_theta": spec.rope.theta} | dict(case.changes))
    for key, value in case.gguf_keys.items():
        _add_key(writer, f"{name}.{key}", value)
    tensors: dict[str, FloatArray] = {}
    for parameter in model.architecture.parameters:
        for layer, owner in enumerate(model.parameters.layers if parameter.per_layer else [model.parameters.top]):
            if parameter.key in owner and parameter.key not in case.gguf_joined:
                values = owner[parameter.key]
                if first := next((key for key, behind in case.gguf_joined.items() if behind == parameter.key), None):
                    values = np.concatenate([owner[first], values])
                stacked = np.stack(values) if isinstance(values, list) else values
                if case.interleaved and parameter.key in ("q", "k", "q_bias", "k_bias"):
                    heads = spec.num_heads if parameter.key.startswith("q") else spec.num_kv_heads
                    stacked = interleave_heads(stacked, heads)
                if parameter.stays_in_file:
                    stacked = np.stack([values.read(row) for row in range(values.rows)])
                stored = parameter.gguf_name.format(layer=layer)
                part = stored.split(".")[-2]
                stored = stored.replace(f".{part}.", f".{(names or {}).get(part, part)}.")
                tensors[stored] = stacked
    for stored, values in _as_converted(tensors, spec).items():
        data, kind = store(stored, np.ascontiguousarray(values, np.float32))
        writer.add_tensor(stored, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    for tensor, numbers in case.gguf_tensors.items():
        writer.add_tensor(tensor, np.array(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _as_converted(tensors: Mapping[str, FloatArray], spec: ModelSpec) -> dict[str, FloatArray]:
    """Parts that the table has by themselves put together, and as matrices what is no vector there."""
    found: dict[str, FloatArray] = {}
    for name, values in tensors.items():
        *front, _, kind = name.split(".")
        if front[-1:] in (["ssm_in"], ["ssm_conv1d"], ["in_proj"]):
            name = ".".join((*front, kind))
            values = np.concatenate([found[name], values]) if name in found else values
        found[name] = values
    for stack, parts in {"altup_proj": "altup_projections", "altup_unembd_proj": "altup_unembed_projections"}.items():
        names = [f"{parts}.{number}.weight" for number in range(spec.streams - 1)]
        if found.keys() >= set(names) and names:
            found[f"{stack}.weight"] = np.stack([found.pop(name) for name in names])
    mixer = spec.mixer
    for name, values in found.items():
        if name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight")) and mixer is not None:
            found[name] = values.reshape(-1, mixer.state(ModelPart.whole(spec)).taps + 1)
        elif name.endswith((".ssm_a", ".ssm_d")):
            found[name] = values.reshape(-1, 1)
        elif name.endswith("ssm_norm.weight") and isinstance(mixer, ScanSpec):
            found[name] = values.reshape(mixer.groups, -1)
    return found


def _add_key(writer: Any, key: str, value: Any) -> None:
    # The type that a file has already counts: a key may stand in for one of every model, and None for its absence.
    writer.kv_data[0].pop(key, None)
    if value is None:
        return
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[list] = writer.add_array
    kinds[type(value)](key, value)


def write_gguf(case: Case, theirs: Any, file: Path) -> Path:
    """The model that transformers has as a GGUF file, all of it F32."""
    import gguf

    own = case.gguf_name or case.kind
    writer = gguf.GGUFWriter(file, own)
    config = (
        SIZES
        | {"model_type": case.kind, "rms_norm_eps": theirs.config.rms_norm_eps, "rope_theta": 10000.0}
        | dict(case.changes)
    )
    write_figures(writer, {"head_dim": config["hidden_size"] // config["num_attention_heads"]} | config)
    for key, value in case.gguf_keys.items():
        _add_key(writer, f"{own}.{key}", value)
    architecture = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == own)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in theirs.state_dict().items():
        stored, values = names.get_name(name, try_suffixes=(".weight", ".bias")), tensor.numpy()
        assert stored is not None, name
        if case.interleaved and (count := heads.get(name.split(".")[-2])):
            values = interleave_heads(values, count)
        writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def check_file(path: Path, theirs: Any, backend: Backend, bound: float) -> None:
    """Logits and greedy tokens of a folder or file that holds what transformers has."""
    model = load_model(open_checkpoint(path), backend)
    driver = Driver(model, backend)
    for prompt in prompts():
        (ours,) = Driver(model, backend).generate([prompt], STEPS, chunk=7)
        wanted = logprobs(theirs, ours.tokens[:-1])
        assert spread_error(driver.prefill(prompt)[1], wanted[: len(prompt)]) < bound
        check_greedy(wanted[len(prompt) - 1 :], ours.tokens[len(prompt) :], LEAST_LEAD)


def spread_error(ours: FloatArray, theirs: FloatArray) -> float:
    """Largest difference as a share of the spread of `theirs`."""
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))
