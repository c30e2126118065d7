"""Hugging Face config.json and generation_config.json, as an architecture reads its figures from them.

What a missing key means is what the model's configuration class in transformers takes it to mean: `Defaults`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from homenode.compute.ops import PlainActivation
from homenode.errors import UnsupportedError
from homenode.model.config.folder_rope import ropes_from_config
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec
from homenode.units import format_count

# What `FolderConfig.sigmoid_moe` asks for besides how many experts there are.
SIGMOID_MOE_FIELDS = frozenset(
    "num_experts_per_tok moe_intermediate_size norm_topk_prob n_group topk_group routed_scaling_factor "
    "n_shared_experts first_k_dense_replace scoring_func topk_method".split()
)
_SAMPLING = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
GELU = "gelu_pytorch_tanh"
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")  # the keys of its figures
HEAD_FIELDS = ("num_key_value_heads", "head_dim")  # the keys of what heads are where the class derives it from others
_SPELLINGS = {"silu": ("silu", "swish"), GELU: (GELU,), "xielu": ("xielu",)}
# What transformers calls the activations of MLPs without a gate.
_PLAIN: Mapping[str, PlainActivation] = {
    **dict.fromkeys((GELU, "gelu_new", "gelu_fast"), "gelu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    "relu": "relu",
    "relu2": "relu2",
}


@dataclass(frozen=True)
class Defaults:
    """The values of an architecture's figures when config.json does not tell them; None: it has to, unless said
    otherwise here. `fields`: what config.json is asked for on their account, besides what it is in every architecture.
    """

    max_position: int
    heads: int | None = None
    kv_heads: int | None = None  # None: as many as query heads
    vocab: int | None = None
    head_dim: int | None = None  # None: hidden size / heads
    bos_id: int | None = None  # of the token that begins a text; None: there is none
    eos_id: int | None = None  # of the token that ends one
    norm_eps: float = 1e-6
    theta: float = 10000.0
    local_theta: float | None = None  # of a rope of its own in layers with a window; None: all layers have one rope
    original_position: int | None = None  # length before an extension of the context; None: the longest position
    intermediate: int | None = None  # of an MLP
    rotary_share: float = 1.0  # of a head's elements that turn
    attention_bias: bool | None = None  # of q, k, v and o; None: the class does not read it, or for some of them
    mlp_bias: bool | None = None  # None: the class does not read it
    activation: str | None = "silu"  # of MLPs, which no file may say otherwise; None: the architecture reads it

    @property
    def fields(self) -> frozenset[str]:
        """Names in config.json."""
        asked = {"hidden_act": self.activation, "attention_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        return frozenset(name for name, value in asked.items() if value is not None)


@dataclass(frozen=True)
class ExpertDefaults:
    """The same of a mixture of experts. `keys`: under which config.json says how many experts there are; the first that
    it has counts.
    """

    experts: int
    experts_per_token: int
    size: int  # of an expert's inner columns
    keys: tuple[str, ...] = ("num_local_experts", "num_experts")

    @property
    def fields(self) -> frozenset[str]:
        """Names in config.json. Experts without a size of their own have that of an MLP."""
        return frozenset((*self.keys, "num_experts_per_tok", *(["moe_intermediate_size"] if self.size else [])))


@dataclass(frozen=True)
class FolderConfig:
    """A config.json. `generation`: generation_config.json, possibly empty.

    `has_output`: whether the weights hold an output matrix; `output_is_embedding`: whether that, where the two are said
    to be tied, is the embedding again (one that is not is used all the same, as transformers has it); `storage`: the
    type most weight bytes are in; `tokenizer_names_eos`: whether the tokenizer's files name a token that ends a text,
    so that the class's own is not added where the configurations name none; `architecture`: the one that it describes,
    once that is known.

    Its methods raise UnsupportedError, naming the field, for what homenode does not run, and CheckpointError for values
    that cannot be.
    """

    fields: Fields
    generation: Fields
    has_output: bool
    storage: str
    output_is_embedding: bool = True
    tokenizer_names_eos: bool = False
    architecture: str = ""

    @property
    def path(self) -> Path:
        """Return the path of the config.json, for messages."""
        return self.fields.path

    def respelled(self, names: Mapping[str, str]) -> FolderConfig:
        """See `Fields.respelled`."""
        return replace(self, fields=self.fields.respelled(names))

    def without(self, *keys: str) -> FolderConfig:
        """The same as if these keys were missing, which the class does not read."""
        fields = self.fields
        for key in keys:
            fields = fields.with_value(key, None)
        return replace(self, fields=fields)

    def of_encoder(self) -> FolderConfig:
        """The same of a class whose tokens see what comes behind them, which a file may say or not. UnsupportedError
        where it says that they do not.
        """
        self.fields.refuse_others({"is_causal": False})
        return self.without("is_causal")

    @property
    def rope_table(self) -> Fields | None:
        """Return what config.json says of the rope in a table of its own, None where it has none, or an empty one."""
        tables = (self.fields.table(key) for key in ("rope_scaling", "rope_parameters"))
        return next((table for table in tables if table is not None and table.names()), None)

    def with_rope(self, table: Mapping[str, object]) -> FolderConfig:
        """The same, with this table of the rope where config.json has none."""
        if self.rope_table is not None or self.fields.has("rope_parameters"):
            return self
        return replace(self, fields=self.fields.with_value("rope_parameters", table))

    def decoder(self, defaults: Defaults, *, rotates_part: bool = False, far_head_dim: int | None = None) -> ModelSpec:
        """The figures that every decoder has. `rotates_part`: the class follows `partial_rotary_factor`; the others
        leave it alone, or fail on it. `far_head_dim`: the length of a head in layers that see their whole context,
        where the architecture reads it itself; the figure is the larger one then.
        """
        if defaults.activation is not None:
            self.refuse_activation("hidden_act", defaults.activation)
        self.refuse_later_context("is_causal", True)
        if not rotates_part:
            self._refuse_part_of_head()
        fields = self.fields
        bias = defaults.attention_bias is not None and fields.boolean("attention_bias", defaults.attention_bias)
        hidden = fields.integer("hidden_size", maximum=limits.MOST_HIDDEN)
        heads = fields.integer("num_attention_heads", defaults.heads, maximum=limits.MOST_HEADS)
        vocab = fields.integer("vocab_size", defaults.vocab, maximum=limits.MOST_VOCAB)
        head_dim = (
            fields.optional_integer("head_dim", maximum=limits.MOST_HEAD_DIM)
            or defaults.head_dim
            or derived_head_dim(fields, hidden, heads)
        )
        position = fields.integer("max_position_embeddings", defaults.max_position, maximum=limits.MOST_POSITION)
        rope, local_rope = ropes_from_config(
            fields,
            defaults.theta,
            defaults.local_theta,
            position,
            far_head_dim or head_dim,
            defaults.original_position,
            defaults.rotary_share,
        )
        if local_rope is not None and far_head_dim is not None:
            local_rope = replace(local_rope, rotary_dim=head_dim)
        return ModelSpec(
            architecture=self.architecture,
            hidden_size=hidden,
            intermediate_size=fields.integer(
                "intermediate_size", defaults.intermediate, maximum=limits.MOST_INTERMEDIATE
            ),
            num_layers=fields.integer("num_hidden_layers", maximum=limits.MOST_LAYERS),
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", defaults.kv_heads or heads, maximum=limits.MOST_HEADS),
            head_dim=max(head_dim, far_head_dim or 0),
            vocab_size=vocab,
            max_position=extended_position(rope, position),
            norm_eps=fields.number("rms_norm_eps", defaults.norm_eps, most=1.0),
            rope=rope,
            local_rope=local_rope,
            tie_word_embeddings=fields.boolean("tie_word_embeddings", not self.has_output) and self.output_is_embedding,
            attention_bias=bias,
            output_bias=bias,
            mlp_bias=defaults.mlp_bias is not None and fields.boolean("mlp_bias", defaults.mlp_bias),
            bos_token_id=self._bos_id(vocab, defaults),
            eos_token_ids=self._eos_ids(vocab, defaults),
            storage=self.storage,
            generation=sampling_defaults(self.generation, _SAMPLING),
        )

    def uniform_decoder(
        self, defaults: Defaults, *, window: int | None = None, rotates_part: bool = False
    ) -> ModelSpec:
        """The same of a class all of whose layers see their whole context, or all a `window`."""
        self.refuse_other_layers(window)
        return replace(self.decoder(defaults, rotates_part=rotates_part), sliding_window=window)

    def labels(self) -> tuple[str, ...]:
        """Return what a model scores whose class is one for that; of another nothing. The names are not the file's own,
        which may have any.
        """
        named = self.fields.texts("architectures")
        if not named or not named[0].endswith("ForSequenceClassification"):
            return ()
        table = self.fields.table("id2label")
        return tuple(f"LABEL_{number}" for number in range(len(table.names()) if table is not None else 2))

    def refuse_activation(self, key: str, wanted: str) -> None:
        """UnsupportedError where the MLP is said to have another activation than `wanted`."""
        activation = self.fields.text(key, wanted)
        if activation not in _SPELLINGS[wanted]:
            raise UnsupportedError(
                f"{self.path}: {key} {quoted(activation)} is not supported; homenode runs {wanted!r}"
            )

    def plain_activation(self, key: str, default: str) -> PlainActivation:
        """The activation of an MLP without a gate, `default` where the file does not say. UnsupportedError for one that
        homenode lacks.
        """
        name = self.fields.text(key, default)
        if name not in _PLAIN:
            raise UnsupportedError(
                f"{self.path}: {key} {quoted(name)} is not supported; homenode runs {', '.join(_PLAIN)}"
            )
        return _PLAIN[name]

    def refuse_later_context(self, key: str, causal: bool) -> None:
        """UnsupportedError where the truth value of `key` is not the one that a causal model has."""
        if self.fields.boolean(key, causal) is not causal:
            raise UnsupportedError(
                f"{self.path}: attention to what comes later ({key}) is not supported; homenode runs causal models"
            )

    def refuse_other_layers(self, window: int | None) -> None:
        """UnsupportedError for `layer_types` that ask for layers of two kinds, or another, where all layers of the
        architecture are of one.
        """
        wanted = "full_attention" if window is None else "sliding_attention"
        if other := next((kind for kind in self.fields.texts("layer_types") if kind != wanted), None):
            raise UnsupportedError(
                f"{self.path}: layer_types with {quoted(other)} is not supported here; homenode runs {wanted} in all "
                f"layers of this model"
            )

    def _refuse_part_of_head(self) -> None:
        """UnsupportedError for a rope over a part of each head where the class has none: some engines leave the key
        alone, others follow it.
        """
        fields = self.fields
        tables = [fields, *(table for key in ("rope_parameters", "rope_scaling") if (table := fields.table(key)))]
        tables += [inner for table in tables[1:] for name in table.names() if (inner := table.optional_table(name))]
        for table in tables:
            if (part := table.optional_number("partial_rotary_factor", most=1.0)) not in (None, 1.0):
                raise UnsupportedError(
                    f"{self.path}: partial_rotary_factor {part:g} is not supported in this architecture; homenode "
                    f"rotates whole heads there"
                )

    def window(self, default: int | None) -> int | None:
        """Tokens of the sliding window; None where there is none. `default`: where the file does not say; None: no
        window then.
        """
        if self.fields.is_null("sliding_window") or not (self.fields.has("sliding_window") or default):
            return None
        return self.fields.integer("sliding_window", default, maximum=limits.MOST_POSITION)

    def with_window_in(
        self, spec: ModelSpec, window: int | None, otherwise: Callable[[int], tuple[bool, ...]]
    ) -> ModelSpec:
        """`spec` with a window in the layers that `layer_types` names; `otherwise` tells of a number of layers which
        they are where the file does not say.
        """
        if window is None:
            return spec
        kinds = self.fields.texts("layer_types")
        if not kinds:
            sliding = otherwise(spec.num_layers)
        elif len(kinds) != spec.num_layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
            wanted = f"{format_count(spec.num_layers, 'value')}, each full_attention or sliding_attention"
            raise self.fields.wrong("layer_types", kinds, wanted)
        else:
            sliding = tuple(kind == "sliding_attention" for kind in kinds)
        return replace(spec, sliding_window=window, sliding_layers=sliding) if any(sliding) else spec

    def experts(self, defaults: ExpertDefaults) -> tuple[str, int]:
        """Return how many experts a layer has, perhaps none, and the key that says so."""
        key = next((key for key in defaults.keys if self.fields.has(key)), defaults.keys[0])
        return key, self.fields.integer(key, defaults.experts, minimum=0, maximum=limits.MOST_EXPERTS)

    def moe(
        self,
        defaults: ExpertDefaults,
        *,
        normalise: bool,
        size: int | None = None,
        dense: tuple[int, ...] = (),
        shared: int = 0,
        shared_experts: int = 0,
        **routing: Any,
    ) -> MoeSpec:
        """The experts. `size`: None: config.json says it. `dense`: layers with an MLP. `shared`: size of the expert
        that every token uses, or `shared_experts`: how many others it is as large as. `routing`: further figures of
        `MoeSpec`.
        """
        key, experts = self.experts(defaults)
        if experts == 0:
            raise self.fields.wrong(key, experts, f"a whole number from 1 to {limits.MOST_EXPERTS}")
        if size is None:
            size = self.fields.integer("moe_intermediate_size", defaults.size, maximum=limits.MOST_INTERMEDIATE)
        return MoeSpec(
            num_experts=experts,
            experts_per_token=self.fields.integer(
                "num_experts_per_tok", defaults.experts_per_token, maximum=limits.MOST_EXPERTS
            ),
            intermediate_size=size,
            normalise=normalise,
            shared_intermediate_size=shared or shared_experts * size,
            dense_layers=dense,
            **routing,
        )

    def front_layers(self, key: str, default: int, layers: int) -> tuple[int, ...]:
        """The layers of a model, which has so many, that are in front of those with experts, by how many `key` says."""
        count = self.fields.integer(key, default, minimum=0, maximum=limits.MOST_LAYERS)
        return tuple(range(min(count, layers)))

    def shared_experts(self, key: str, default: int) -> int:
        """Return how many experts every token uses, by `key`."""
        return self.fields.integer(key, default, minimum=0, maximum=limits.MOST_EXPERTS)

    def expert_groups(self, groups: int = 1, chosen: int = 1) -> dict[str, int]:
        """Return in how many groups the experts are, and in how many a token chooses, as `moe` takes them."""
        most = limits.MOST_EXPERTS
        return {
            "groups": self.fields.integer("n_group", groups, maximum=most),
            "groups_chosen": self.fields.integer("topk_group", chosen, maximum=most),
        }

    def sigmoid_moe(
        self,
        defaults: ExpertDefaults,
        layers: int,
        *,
        dense: int = 1,
        scale: float = 1.0,
        groups: tuple[int, int] = (1, 1),
        normalise: bool = True,
        shared: int = 1,
    ) -> MoeSpec:
        """The experts of a class that routes as DeepSeek V3 does: sigmoid scores, chosen with a bias, in groups; layers
        in front have an MLP. `dense`: how many layers, `scale`: of weights, `groups`: of experts in all, and of which
        experts are chosen, `normalise`: whether weights add up to 1, `shared`: experts that every token uses, where
        config.json does not say.
        """
        self.refuse_other_scores()
        return self.moe(
            defaults,
            normalise=self.fields.boolean("norm_topk_prob", normalise),
            dense=self.front_layers("first_k_dense_replace", dense, layers),
            shared_experts=self.shared_experts("n_shared_experts", shared),
            score="sigmoid",
            epsilon=1e-20,
            scale=self.fields.number("routed_scaling_factor", scale),
            **self.expert_groups(*groups),
        )

    def refuse_other_scores(self) -> None:
        """UnsupportedError where experts are said to be scored or chosen otherwise than by sigmoid and bias."""
        self.fields.refuse_others({"scoring_func": "sigmoid", "topk_method": "noaux_tc"})

    def _bos_id(self, vocab: int, defaults: Defaults) -> int | None:
        """generation_config.json wins."""
        key = "bos_token_id"
        for source in (self.generation, self.fields):
            if source.has(key):
                return next(iter(source.token_ids(key, vocab)), None)
        return None if self.fields.is_null(key) else defaults.bos_id

    def _eos_ids(self, vocab: int, defaults: Defaults) -> tuple[int, ...]:
        """Return what both files name together, as some models tell some of it in one only; the class's own where no
        file names one.
        """
        key = "eos_token_id"
        named = [source for source in (self.generation, self.fields) if source.has(key)]
        if named:
            return tuple(dict.fromkeys(i for source in named for i in source.token_ids(key, vocab)))
        if defaults.eos_id is None or self.fields.is_null(key) or self.tokenizer_names_eos:
            return ()
        return (defaults.eos_id,)


def derived_head_dim(fields: Fields, hidden: int, heads: int) -> int:
    """Hidden size shared out over the heads."""
    if hidden % heads or hidden // heads > limits.MOST_HEAD_DIM:
        raise fields.wrong(
            "attention heads",
            heads,
            f"a divisor of the hidden size {hidden} into heads of at most {limits.MOST_HEAD_DIM}",
        )
    return hidden // heads


def extended_position(rope: RopeSpec, position: int) -> int:
    """Longest context. YaRN configurations keep the length before the extension, so the factor is applied here."""
    if rope.kind == "yarn" and rope.original_max_position:
        return min(max(position, math.floor(rope.original_max_position * rope.factor)), limits.MOST_POSITION)
    return position


def sampling_defaults(fields: Fields, keys: Mapping[str, str]) -> dict[str, float | int]:
    """The model's own way of drawing tokens: the values there are, by our names; `keys` maps those to the keys of the
    file.
    """
    found: dict[str, float | int] = {}
    for name, (least, most) in {
        "temperature": (0.0, 1e6),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1e-3, 1e3),
    }.items():
        if (value := fields.optional_number(keys[name], least=least, most=most)) is not None:
            found[name] = value
    if (top_p := fields.optional_number(keys["top_p"], most=1.0)) is not None:
        found["top_p"] = top_p
    if (top_k := fields.optional_integer(keys["top_k"], minimum=-1)) is not None:
        found["top_k"] = max(top_k, 0)  # -1 is another spelling of off
    return found
