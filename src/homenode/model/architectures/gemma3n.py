"""Gemma 3n, its text: Gemma 4's attention and per-layer inputs among several streams of rows (AltUp; Baykal et al.
2023).

A layer predicts every stream from all of them, computes on the first one, and corrects all by what became of that. A
product of low rank (LAuReL; Menghani et al. 2024) is added beside attention, and in some layers few values of a gate
are above 0: those that are far above the mean of their row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from homenode.compute.ops import LayerKv, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, gemma2, gemma4, per_layer_inputs, shared_keys, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, always, of_layer, of_model
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import GELU, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import slice_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

LOCAL_THETA = 1e4
DEFAULTS = replace(gemma4.DEFAULTS, max_position=32768, kv_heads=2, vocab=262400)
PATTERN = 5  # each layer of that number sees its whole context, the others a window
WINDOW, INTERMEDIATE, SHARED, RANK, VOCABULARY, LOGITS_SOFTCAP = 512, 16384, 15, 64, 262144, 30.0
STREAMS, MOST_STREAMS = 4, 8
SPARSE_LAYERS, SPARSITY = 10, 0.95  # the first layers, in larger models, and how much of a gate is 0 there
FLOOR = 1e-5  # of the mean square that a stream is divided by
FIELDS = frozenset(
    "hidden_activation sliding_window use_bidirectional_attention attention_bias final_logit_softcapping "
    "vocab_size_per_layer_input hidden_size_per_layer_input num_kv_shared_layers laurel_rank altup_num_inputs "
    "altup_active_idx altup_correct_scale activation_sparsity_pattern rope_local_base_freq".split()
)
KEYS = frozenset(
    "attention.shared_kv_layers rope.freq_base_swa embedding_length_per_layer_input final_logit_softcapping "
    "activation_sparsity_scale altup.num_inputs altup.active_idx".split()
)


@dataclass(frozen=True)
class Gemma3nExtras:
    """`deviations`: of each layer how many standard deviations above its row's mean a value of the gate has to be, None
    where all count. `scaled`: the corrected stream is scaled before the per-layer input.
    """

    deviations: tuple[float | None, ...]
    scaled: bool = True


_is_sparse = of_layer(lambda spec, layer: spec.own_as(Gemma3nExtras).deviations[layer] is not None)
_is_dense = of_layer(lambda spec, layer: spec.own_as(Gemma3nExtras).deviations[layer] is None)
_is_scaled = of_model(lambda spec: spec.own_as(Gemma3nExtras).scaled)


def _stream_projections(key: str, name: str, number: int) -> Parameter:
    """The matrix of stream `number` where streams begin (`in`) or end (`out`)."""

    def is_here(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
        return number < spec.streams and (part.first_stage if key == "in" else part.last_stage)

    index = number - 1
    return Parameter(
        f"stream_{key}_{number}",
        f"model.{name}.{index}.weight",
        ("hidden", "hidden"),
        f"{name}.{index}.weight",
        is_here,
    )


def _altup(key: str, name: str, gguf: str, *shape: str, when: Condition = always) -> Parameter:
    return layer_weight(f"stream_{key}", f"altup.{name}", f"altup_{gguf}", *shape, when=when)


_IN, _OUT = "altup_projections", "altup_unembed_projections"
_GATE, *_UP_DOWN = tables.GATE_UP_DOWN
_SCALE = "altup.correct_output_scale"
PARAMETERS = (
    *gemma4.EMBEDDING_AND_HEAD,
    *per_layer_inputs.ON_TOP,
    *(_stream_projections("in", _IN, number) for number in range(1, MOST_STREAMS)),
    *(_stream_projections("out", _OUT, number) for number in range(1, MOST_STREAMS)),
    *gemma4.ATTENTION,
    tables.NORM_BETWEEN,
    replace(_GATE, when=_is_dense),
    replace(_GATE, key="sparse_gate", shape=("all_intermediate", "hidden"), when=_is_sparse),
    *_UP_DOWN,
    tables.NORMS_BEHIND[1],
    *per_layer_inputs.OF_LAYERS,
    layer_weight("laurel_left", "laurel.linear_left", "laurel_l", "laurel", "hidden"),
    layer_weight("laurel_right", "laurel.linear_right", "laurel_r", "hidden", "laurel"),
    layer_weight("laurel_norm", "laurel.post_laurel_norm", "laurel_post_norm", "hidden"),
    _altup("norm", "router_norm", "router_norm", "hidden"),
    _altup("router", "modality_router", "router", "streams", "hidden"),
    _altup("predict", "prediction_coefs", "predict_coef", "stream_pairs", "streams"),
    _altup("correct", "correction_coefs", "correct_coef", "streams", "streams"),
    Parameter(
        "stream_scale",
        f"model.layers.{{layer}}.{_SCALE}",
        ("hidden",),
        "blk.{layer}.altup_correct_scale.weight",
        _is_scaled,
    ),
)


def _with_streams(spec: ModelSpec, streams: int, taken: int, vocabulary: int, rank: int) -> ModelSpec:
    dimensions = {"streams": streams, "stream_pairs": streams**2, "laurel": rank}
    return replace(per_layer_inputs.with_inputs(spec, taken, vocabulary, **dimensions), streams=streams)


def _refuse_other_stream(fields: Fields, key: str) -> None:
    if active := fields.integer(key, 0, minimum=0):
        raise UnsupportedError(f"{fields.path}: {key} {active} is not supported; homenode computes on stream 0")


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    config.refuse_activation("hidden_activation", GELU)
    config.refuse_later_context("use_bidirectional_attention", False)
    fields.refuse_others({"attention_bias": False})
    _refuse_other_stream(fields, "altup_active_idx")
    layers = fields.integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    inner = fields.per_layer("intermediate_size", layers, INTERMEDIATE, maximum=limits.MOST_INTERMEDIATE)
    config = replace(config, fields=fields.with_value("intermediate_size", max(inner)))
    spec = config.decoder(DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=WINDOW), lambda n: all_but_each(n, PATTERN))
    shared = fields.integer("num_kv_shared_layers", SHARED, minimum=0, maximum=layers - 1)
    own = [LayerKv(spec.num_kv_heads, spec.head_dim, spec.head_dim)] * layers
    spec = _with_streams(
        shared_keys.with_layers(config, spec, own, shared),
        fields.integer("altup_num_inputs", STREAMS, minimum=2, maximum=MOST_STREAMS),
        fields.integer("hidden_size_per_layer_input", per_layer_inputs.WIDTH, maximum=limits.MOST_HIDDEN),
        fields.integer("vocab_size_per_layer_input", VOCABULARY, maximum=limits.MOST_VOCAB),
        fields.integer("laurel_rank", RANK, maximum=limits.MOST_HIDDEN),
    )
    return replace(
        spec,
        layer_intermediate=inner if len(set(inner)) > 1 else (),
        logits_softcap=gemma2.softcap(config, "final_logit_softcapping", LOGITS_SOFTCAP),
        own=Gemma3nExtras(_deviations(fields, layers), fields.boolean("altup_correct_scale", True)),
    )


def _deviations(fields: Fields, layers: int) -> tuple[float | None, ...]:
    """Return those beyond which a share of values that are normally distributed lies, which a folder has for each
    layer.
    """
    key = "activation_sparsity_pattern"
    shares = fields.value(key)
    if shares is None:
        sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        shares = [SPARSITY] * sparse + [0.0] * (layers - sparse)
    numbers = [x for x in shares if type(x) in (int, float) and 0 <= x < 1] if isinstance(shares, list) else []
    if not isinstance(shares, list) or not len(numbers) == len(shares) == layers:
        raise fields.wrong(key, shares, f"a list of {layers} numbers from 0 to below 1")
    return tuple(NormalDist().inv_cdf(share) if share else None for share in numbers)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields, key = config.fields, "activation_sparsity_scale"
    _refuse_other_stream(fields, "altup.active_idx")
    spec = config.decoder(theta=DEFAULTS.theta, layers_differ=True, own_scale=True)
    layers = spec.num_layers
    inner = config.per_layer("feed_forward_length", maximum=limits.MOST_INTERMEDIATE)
    shared = fields.integer("attention.shared_kv_layers", 0, minimum=0, maximum=layers - 1)
    scales = fields.value(key)
    if not isinstance(scales, list) or len(scales) != layers or not all(type(x) is float and x < 1e3 for x in scales):
        raise fields.wrong(key, scales, f"a list of {layers} numbers")
    rank = config.tensors.get("model.layers.0.laurel.linear_left.weight")
    spec = replace(
        config.with_window_in(spec, config.window(WINDOW), lambda n: all_but_each(n, PATTERN)),
        local_rope=config.local_rope(LOCAL_THETA),
        layer_intermediate=inner if len(set(inner)) > 1 else (),
        logits_softcap=fields.optional_number("final_logit_softcapping", least=0.0) or LOGITS_SOFTCAP,
        own=Gemma3nExtras(tuple(None if x == -math.inf else x for x in scales)),
    )
    own = [LayerKv(spec.num_kv_heads, spec.head_dim, spec.head_dim)] * layers
    return _with_streams(
        shared_keys.with_layers(config, spec, own, shared),
        fields.integer("altup.num_inputs", STREAMS, minimum=2, maximum=MOST_STREAMS),
        fields.integer("embedding_length_per_layer_input", maximum=limits.MOST_HIDDEN),
        spec.vocab_size,
        rank.shape[0] if rank is not None and rank.shape else RANK,
    )


def _from_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    found = shared_keys.without_unread(tensors, spec)
    return (
        found
        if spec.own_as(Gemma3nExtras).scaled
        else {n: entry for n, entry in found.items() if not n.endswith(_SCALE)}
    )


def _from_gguf(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """A file's tensors, those that stack the matrices of streams as one for each."""
    found = shared_keys.without_unread(tensors, spec)
    for name in (_IN, _OUT):
        entry = found.pop(f"model.{name}.weight", None)
        for index in range(entry.shape[0] if entry is not None and len(entry.shape) == 3 else 0):
            assert entry is not None
            each = f"model.{name}.{index}.weight"
            found[each] = slice_of(entry, index, each)
    return found


def _streams_of(ops: Ops, model: ForwardContext) -> Tensor:
    """All streams beside each other: the embedding, and its products, made as large as that."""
    if not model.part.first_stage:
        return ops.received(model.spec.handed_columns)
    x, top = stage.embedded(ops, model), model.parameters.top
    matrices = [top[f"stream_in_{number}"] for number in range(1, model.spec.streams)]
    return ops.join_heads(x, ops.match_magnitude(ops.linear(x, matrices), x, FLOOR), 1)


def _modalities(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> Tensor:
    """Numbers from -1 to 1, one for each stream, of which the weights of streams are made."""
    scaled = ops.scale(stage.normed(ops, model, x, layer["stream_norm"]), 1 / model.spec.hidden_size)
    return ops.soft_cap(ops.linear(scaled, (layer["stream_router"],)), 1.0)


def _attended(ops: Ops, model: ForwardContext, index: int, x: Tensor, h: Tensor, inner: Tensor) -> Tensor:
    """x plus the attention of layer `index` of this stage, whose inner columns are `inner`, and h, its input, plus a
    product of low rank of that; divided by sqrt(2).
    """
    layer = model.parameters.layers[index]
    x = stage.add_projected(ops, model, layer, x, inner, "o", "attended_norm")
    low = ops.linear(ops.linear(h, (layer["laurel_left"],)), (layer["laurel_right"],))
    laurel = ops.add(h, stage.normed(ops, model, low, layer["laurel_norm"]))
    return ops.scale(ops.add(x, laurel), 2**-0.5)


def _fed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus the MLP of layer `index` of this stage. Every rank has all of a gate whose mean counts."""
    layer, number = model.parameters.layers[index], model.part.layers.first + index
    h = stage.normed(ops, model, x, layer["post_norm"])
    deviations = model.spec.own_as(Gemma3nExtras).deviations[number]
    if deviations is None:
        inner = ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"])))
    else:
        gate, here = (
            ops.relu_above(ops.linear(h, (layer["sparse_gate"],)), deviations),
            model.part.intermediate_in(number),
        )
        gate = stage.columns_of(ops, gate, here, model.spec.intermediate_of(number), 1)
        inner = ops.gelu_mul(gate, ops.linear(h, (layer["up"],)))
    return stage.add_projected(ops, model, layer, x, inner, "down", "mlp_norm")


def _corrected(ops: Ops, model: ForwardContext, layer: Layer, predicted: Tensor, x: Tensor, taken: Tensor) -> Tensor:
    """The streams behind a layer, x being what became of the first one, and `taken` what the layer takes in."""
    hidden, rest = model.spec.hidden_size, model.spec.handed_columns - model.spec.hidden_size
    weights = ops.linear(_modalities(ops, model, layer, x), (layer["stream_correct"],))
    news = ops.add(x, ops.scale(ops.split(predicted, (hidden, rest))[0], -1.0))
    first, others = ops.split(ops.add_weighted(predicted, news, weights, hidden, 1.0), (hidden, rest))
    scaled = ops.multiply(first, layer["stream_scale"]) if "stream_scale" in layer else first
    out = per_layer_inputs.behind(ops, model, layer, scaled, taken)
    return ops.join_heads(first, ops.add_weighted(others, out, None, hidden, 1.0), 1)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage: all streams."""
    hidden, streams = model.spec.hidden_size, _streams_of(ops, model)
    widths = (hidden, model.spec.handed_columns - hidden)
    inputs = per_layer_inputs.of_tokens(ops, model)
    far, near = attention.angles(ops, model.rope), attention.angles(ops, model.rope.local or model.rope)
    for index, layer in enumerate(model.parameters.layers):
        first = ops.split(streams, widths)[0]
        weights = ops.linear(_modalities(ops, model, layer, first), (layer["stream_predict"],))
        predicted = ops.add_weighted(streams, streams, weights, hidden)
        h = stage.normed(ops, model, ops.split(predicted, widths)[0], layer["input_norm"])
        rotation = far if attention.window(model, index) is None else near
        inner = gemma4.attended(ops, model, index, h, rotation)
        taken = inputs[model.part.layers.first + index]
        inner, predicted, h, taken = (
            stage.select_last(ops, model, index, each) for each in (inner, predicted, h, taken)
        )
        x = _attended(ops, model, index, ops.split(predicted, widths)[0], h, inner)
        x = _fed_forward(ops, model, index, x)
        streams = _corrected(ops, model, layer, predicted, x, taken)
    if not model.part.last_stage:
        return streams
    first, *others = ops.split(streams, [hidden] * model.spec.streams)
    x = first
    for number, other in enumerate(others, 1):
        product = ops.linear(other, (model.parameters.top[f"stream_out_{number}"],))
        x = ops.add(x, ops.match_magnitude(product, first, FLOOR))
    return stage.leave(ops, model, ops.scale(x, 1 / model.spec.streams))


ARCHITECTURE = Architecture(
    "gemma3n",
    FolderFormat(
        "Gemma3nForCausalLM",
        _read_folder,
        fields=FIELDS,
        harmless=gemma2.HARMLESS | {"altup_coef_clip": "of training only"},
        model_types=("gemma3n_text",),
        picture_classes=("Gemma3nForConditionalGeneration",),
        convert=_from_folder,
    ),
    GgufFormat(
        "gemma3n",
        _read_gguf,
        keys=KEYS,
        names={
            f"{stacked}.weight": f"model.{name}.weight"
            for stacked, name in (("altup_proj", _IN), ("altup_unembd_proj", _OUT))
        },
        convert=_from_gguf,
    ),
    PARAMETERS,
    forward,
)
