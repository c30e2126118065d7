"""An architecture's parameters as data: their names in a checkpoint, their shapes in the model's terms, and when they
exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from homenode.compute.ops import KvCache, StateMemory
from homenode.model.architectures.rope import Rope
from homenode.model.part import IndexRange, ModelPart
from homenode.model.spec import DeltaSpec, ModelSpec

RowsKept = Literal["selected", "all", "normed"]
# Of the figures, the part, and the number of a layer (None: of what is outside the layers).
Condition = Callable[[ModelSpec, ModelPart, int | None], bool]


def of_model(holds: Callable[[ModelSpec], bool]) -> Condition:
    """The condition that every part and every layer of some models meets."""
    return lambda spec, _part, _layer: holds(spec)


def of_layer(holds: Callable[[ModelSpec, int], bool]) -> Condition:
    """The condition that some layers of a model meet."""
    return lambda spec, _part, layer: layer is not None and holds(spec, layer)


def always(_spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    """The condition of a parameter that every part of a model, or every layer, has."""
    return True


@dataclass(frozen=True)
class Parameter:
    """One line of an architecture's table.

    `name` is the Hugging Face name, with `{layer}` for the layer's number where every layer has one, and `{expert}`
    where every expert of a layer has one, or `{head}` where every query head has, or `{group}` where every group of
    them has (`ModelSpec.group_heads`): its handle is a list of them.
    `gguf_name` is the name in GGUF files, with
    `{layer}` likewise; the matrices of a layer's experts are stacked in one tensor there. `shape` holds names of
    `dimensions()`: two for a matrix [rows = outputs, columns = inputs], one for a vector. `when` says whether a part
    of a model, or a layer of it, has the parameter. `stays_in_file`: rows are read when a step asks for them. `key` is
    what the forward function calls it; `weights.layout` keeps
    `embed`, `lm_head`, `router` and `shared_router` in wider formats.
    """

    key: str
    name: str
    shape: tuple[str, ...]
    gguf_name: str
    when: Condition = always
    stays_in_file: bool = False

    @property
    def kind(self) -> str:
        """`matrix` (packed by the backend), `vector` (float32), or `table`, whose rows are read from its file."""
        if self.stays_in_file:
            return "table"
        return "matrix" if len(self.shape) == 2 else "vector"

    @property
    def per_layer(self) -> bool:
        """Is there one in every layer?"""
        return "{layer}" in self.name

    @property
    def per_expert(self) -> bool:
        """Is there one for every expert of a layer?"""
        return "{expert}" in self.name

    @property
    def per_head(self) -> bool:
        """Is there one for every query head of a layer, or every group of them?"""
        return "{head}" in self.name or "{group}" in self.name

    @property
    def of_several(self) -> str:
        """Of what there is one each then: a name of `dimensions()`."""
        return "groups" if "{group}" in self.name else "heads"


@dataclass(frozen=True)
class Parameters:
    """Handles of a loaded model's parameters, by `Parameter.key`: a list of them where every expert has one.

    A key the model (or the layer) lacks is absent: biases are looked up with `.get`. `by_name`: the same handles by the
    names of their tensors, for who wraps the `Ops` that they are given to (`LoadedModel.wrap`).
    """

    top: Mapping[str, Any]
    layers: tuple[Mapping[str, Any], ...]
    by_name: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ForwardContext:
    """The context that a forward function is given besides the ops: figures of the whole model, and the part of it that
    is here: its parameters, and the KV memory of its layers and heads for this program. `cache_layers`: for each layer
    of the model that attends here, the layer of the KV memory that it reads; `index_layers`: for each that has an
    indexer, the layer that holds its keys. `state`: the memory of what its layers keep of sequences besides, and
    `state_layers` the number there of each layer that does, by its number in the model.
    """

    spec: ModelSpec
    parameters: Parameters
    rope: Rope
    cache: KvCache
    part: ModelPart
    cache_layers: Mapping[int, int]
    index_layers: Mapping[int, int] = field(default_factory=dict)
    state: StateMemory = None
    state_layers: Mapping[int, int] = field(default_factory=dict)
    takes_rows: bool = False  # steps may bring rows in place of embeddings
    # The rows of all tokens are handed on behind the last layer, too: as they are, or behind the last norm.
    keeps_rows: RowsKept = "selected"


def dimensions(spec: ModelSpec, layer: int | None = None) -> dict[str, int]:
    """The lengths shapes are made of, in a layer of the model, or outside the layers."""
    moe = spec.moe
    kv_heads, head_dim = (spec.num_kv_heads, spec.head_dim) if layer is None else spec.heads_of(layer)
    heads = spec.num_heads if layer is None else spec.query_heads_of(layer)
    return {
        "one": 1,
        "vocabulary": spec.vocab_size,
        "hidden": spec.hidden_size,
        **dict.fromkeys(
            ("intermediate", "all_intermediate"),  # the second where no rank has a part of it
            spec.intermediate_size if layer is None else spec.intermediate_of(layer),
        ),
        "experts": moe.num_experts + moe.identities if moe else 0,
        "expert_intermediate": moe.intermediate_size if moe else 0,
        "shared_intermediate": moe.shared_intermediate_size if moe else 0,
        "heads": heads,
        "query": heads * head_dim,
        "kv": kv_heads * head_dim,
        "all_query": heads * head_dim,  # of what is normed together: no rank has a part of it
        "all_kv": kv_heads * head_dim,
        "head": head_dim,
        "query_and_gate": 2 * heads * head_dim,
        **spec.dimensions,
        **{name: heads * width for name, width in spec.head_widths.items()},
        **{name: kv_heads * width for name, width in spec.kv_head_widths.items()},
        **{name: heads // spec.group_heads * width for name, width in spec.group_widths.items()},
        **_delta_dimensions(spec.delta, spec.state_groups),
        **(spec.mixer.dimensions() if spec.mixer is not None else {}),
    }


def _delta_dimensions(delta: DeltaSpec | None, key_heads: int) -> dict[str, int]:
    """Return those of layers with a gated delta rule, for so many of their key heads and the value heads
    these serve.
    """
    if delta is None:
        return {}
    heads = key_heads * (delta.value_heads // delta.key_heads)
    key, value, width = key_heads * delta.key_width, heads * delta.value_width, delta.taps + 1
    return {
        "delta_heads": heads,
        "delta_gates": 2 * heads,
        "delta_key": key,
        "delta_value": value,
        "delta_fused": 2 * key + 2 * value,
        "delta_key_taps": key * width,
        "delta_value_taps": value * width,
    }


def _delta_ranges(delta: DeltaSpec | None, key_heads: IndexRange) -> dict[str, IndexRange]:
    """Return what of these some key heads and their value heads have, which may be apart from each other."""
    before, counts = (_delta_dimensions(delta, count) for count in (key_heads.first, key_heads.count))
    found = {name: IndexRange(before[name], count) for name, count in counts.items()}
    if delta is None or not delta.interleaved:
        return found
    turns = delta.value_heads // delta.key_heads
    for name in ("delta_heads", "delta_value", "delta_value_taps"):
        of_head = counts[name] // counts["delta_heads"]
        found[name] = IndexRange(key_heads.first * of_head, counts[name], turns, delta.key_heads * of_head)
    return found


def ranges(spec: ModelSpec, part: ModelPart, layer: int | None = None) -> dict[str, IndexRange]:
    """Return what a part has of each dimension in a layer of the model, or outside the layers: all of those that are
    never divided.
    """
    whole = {name: IndexRange(0, size) for name, size in dimensions(spec, layer).items()}
    heads, kv_heads = (part.heads, part.kv_heads) if layer is None else part.heads_in(layer)
    head_dim = whole["head"].count
    groups = IndexRange(heads.first // spec.group_heads, heads.count // spec.group_heads)
    whole |= _delta_ranges(spec.delta, part.state_groups)
    whole |= spec.mixer.ranges(part) if spec.mixer is not None else {}
    return whole | {
        "vocabulary": part.vocabulary,
        "intermediate": part.intermediate if layer is None else part.intermediate_in(layer),
        "expert_intermediate": part.expert_intermediate,
        "shared_intermediate": part.shared_intermediate,
        "heads": heads,
        "query": IndexRange(heads.first * head_dim, heads.count * head_dim),
        "query_and_gate": IndexRange(2 * heads.first * head_dim, 2 * heads.count * head_dim),
        "kv": IndexRange(kv_heads.first * head_dim, kv_heads.count * head_dim),
        **{name: IndexRange(heads.first * n, heads.count * n) for name, n in spec.head_widths.items()},
        **{name: IndexRange(kv_heads.first * n, kv_heads.count * n) for name, n in spec.kv_head_widths.items()},
        **{name: IndexRange(groups.first * n, groups.count * n) for name, n in spec.group_widths.items()},
    }


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor the checkpoint must hold. `layer` is None for those outside the layers, `expert` for those that are no
    expert's, `head` for those that are no head's.

    `cut`: what is wanted of each dimension of `shape`.
    """

    parameter: Parameter
    layer: int | None
    name: str
    shape: tuple[int, ...]
    cut: tuple[IndexRange, ...]
    expert: int | None = None
    head: int | None = None

    @property
    def is_one_of_several(self) -> bool:
        """Return whether its handle is in a list of those of all experts or heads."""
        return self.expert is not None or self.head is not None


def expected_tensors(
    table: tuple[Parameter, ...], spec: ModelSpec, part: ModelPart | None = None
) -> Iterator[ExpectedTensor]:
    """Every tensor that a part of a model of these figures has (None: all of it), layer by layer, in the order they are
    used; a layer's experts' matrices of one kind beside each other.
    """
    part = part or ModelPart.whole(spec)

    def expected(layer: int | None, experts: tuple[int, ...]) -> Iterator[ExpectedTensor]:
        sizes, has = dimensions(spec, layer), ranges(spec, part, layer)
        for parameter in table:
            if parameter.per_layer == (layer is not None) and parameter.when(spec, part, layer):
                shape, cut = tuple(sizes[d] for d in parameter.shape), tuple(has[d] for d in parameter.shape)
                for expert in experts if parameter.per_expert else (None,):
                    several = has[parameter.of_several]
                    for head in range(several.first, several.end) if parameter.per_head else (None,):
                        name = parameter.name.format(layer=layer, expert=expert, head=head, group=head)
                        yield ExpectedTensor(parameter, layer, name, shape, cut, expert, head)

    yield from expected(None, ())
    for layer, experts in enumerate(part.experts, part.layers.first):
        yield from expected(layer, experts)
