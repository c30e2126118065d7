"""The key-value pairs of a GGUF file, as an architecture reads its figures from them.

Source: the key list of the GGUF specification; the meaning of missing keys is that of its reference reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from homenode.compute.ops import ExpertScore, GroupScore
from homenode.errors import UnsupportedError
from homenode.model.config.folder_config import derived_head_dim, extended_position, sampling_defaults
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, quoted, read_at
from homenode.model.formats.fields import Fields
from homenode.model.formats.gguf_token_ids import token_id_of, token_ids_of
from homenode.model.spec import ModelSpec, MoeSpec, RopeSpec, TensorEntry
from homenode.units import format_count

FACTORS, LONG_FACTORS, SHORT_FACTORS = ROPE_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
# By expert_gating_func
_SCORES: dict[int, ExpertScore] = {1: "softmax", 2: "sigmoid", 3: "chosen_softmax", 4: "sqrt_softplus"}
_ROUTER = "model.layers.{layer}.mlp.gate.weight"
_ENDS = ("eos", "eot", "eom")  # the roles of tokens that end an answer
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def blocks(fields: Fields) -> int:
    """Blocks that a file counts: layers, and behind them those that predict further tokens."""
    return fields.integer("block_count", maximum=limits.MOST_LAYERS)


def trunk_layers(fields: Fields) -> int:
    """Layers of the model: its blocks without those that predict further tokens (multi-token prediction), which are
    left unread.
    """
    count = blocks(fields)
    return count - fields.integer("nextn_predict_layers", 0, minimum=0, maximum=count - 1)


@dataclass(frozen=True)
class GgufConfig:
    """A GGUF file's description of its model. `fields`: the keys of its architecture, without the name of that in
    front.

    `tensors`: by Hugging Face name; `factors`: tensors of `ROPE_FACTORS`, which hold figures of the rope;
    `architecture`: the one that reads the figures.

    Its methods raise UnsupportedError, naming the key, for what homenode does not run, and CheckpointError for values
    that cannot be.
    """

    fields: Fields
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    factors: Mapping[str, TensorEntry]
    architecture: str

    @property
    def path(self) -> Path:
        """Return the path of the file, for messages."""
        return self.fields.path

    def respelled(self, names: Mapping[str, str]) -> GgufConfig:
        """See `Fields.respelled`."""
        return replace(self, fields=self.fields.respelled(names))

    @property
    def layers(self) -> int:
        """Layers of the model, without the blocks that predict further tokens."""
        return trunk_layers(self.fields)

    def per_layer(
        self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = limits.MOST_HEADS
    ) -> tuple[int, ...]:
        """A figure of each layer, which the file has as one number or as a list of one for each block. `default`: where
        the file does not say; None: it has to.
        """
        values = self.fields.per_layer(key, blocks(self.fields), default, minimum=minimum, maximum=maximum)
        return values[: self.layers]

    def marked_layers(self, key: str) -> tuple[bool, ...] | None:
        """Return which layers a key such as `attention.sliding_window_pattern` marks, by truth values or by a period;
        None where the file does not say.
        """
        marks = self.fields.marks_per_layer(key, blocks(self.fields))
        return None if marks is None else marks[: self.layers]

    def decoder(
        self,
        *,
        theta: float = 10000.0,
        whole_heads: bool = False,
        own_scale: bool = False,
        layers_differ: bool = False,
        head_dim: int | None = None,
        intermediate: int | None = None,
        own_magnitude: bool = False,
    ) -> ModelSpec:
        """The figures that every decoder has. `theta`: of rope, where the file does not say. `whole_heads`: the
        converter reorders the rows of whole heads, so that a shorter rotation is refused; `own_scale`: the architecture
        reads `attention.scale` itself. `layers_differ`: layers may have unequal numbers of heads or lengths of the MLP,
        0 among them, which the architecture reads by `per_layer`; the figures are the largest then. `head_dim`: the
        length of a head, where the architecture reads it itself. `intermediate`: the length of an MLP, where the file
        does not say. `own_magnitude`: the architecture reads `rope.scaling.yarn_log_multiplier` itself.
        """
        fields = self.fields
        hidden = fields.integer("embedding_length", maximum=limits.MOST_HIDDEN)
        vocab = self._vocab_size()
        heads = self._largest("attention.head_count", layers_differ)
        if head_dim is None:
            head_dim = self._head_dim(hidden, heads)
        if not own_scale:
            self._refuse_scale(head_dim)
        position = fields.integer("context_length", maximum=limits.MOST_POSITION)
        if not own_magnitude:
            self._refuse_magnitude()
        rope = self._rope(theta, head_dim, position, whole_heads)
        return ModelSpec(
            architecture=self.architecture,
            hidden_size=hidden,
            intermediate_size=self._largest(
                "feed_forward_length", layers_differ, intermediate, limits.MOST_INTERMEDIATE
            ),
            num_layers=self.layers,
            num_heads=heads,
            num_kv_heads=self._largest("attention.head_count_kv", layers_differ, heads),
            head_dim=head_dim,
            vocab_size=vocab,
            max_position=extended_position(rope, position),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon", most=1.0),
            rope=rope,
            tie_word_embeddings=limits.OUTPUT not in self.tensors,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in self.tensors,
            output_bias="model.layers.0.self_attn.o_proj.bias" in self.tensors,
            mlp_bias=any(f"model.layers.0.mlp.{part}_proj.bias" in self.tensors for part in ("gate", "up")),
            bos_token_id=token_id_of(self.metadata, "bos", vocab),
            eos_token_ids=tuple(dict.fromkeys(i for role in _ENDS for i in token_ids_of(self.metadata, role, vocab))),
            storage=limits.main_storage(dict(self.tensors)),
            generation=sampling_defaults(Fields(self.path, self.metadata, "general.sampling."), _SAMPLING),
        )

    def uniform_decoder(self, **how: Any) -> ModelSpec:
        """The same of an architecture all of whose layers see their whole context. `how`: as for `decoder`."""
        return self.refuse_window(self.decoder(**how))

    def uniform_mixture(self, **how: Any) -> ModelSpec:
        """The same of an architecture whose layers have experts. `how`: as for `moe`."""
        return self.with_moe(self.uniform_decoder(), **how)

    def with_moe(self, spec: ModelSpec, **how: Any) -> ModelSpec:
        """`spec` with the experts of the file. `how`: as for `moe`."""
        return replace(spec, moe=self.moe(spec, **how))

    def _largest(
        self, key: str, layers_differ: bool, default: int | None = None, maximum: int = limits.MOST_HEADS
    ) -> int:
        """The figure of the layer that has most; UnsupportedError where layers differ and must not."""
        values = self.per_layer(key, default, minimum=0, maximum=maximum)
        if not layers_differ and min(values) != max(values):
            raise UnsupportedError(
                f"{self.path}: {key} that differs between layers ({min(values)} to {max(values)}) is not supported in "
                f"this architecture; homenode wants the same in all of them"
            )
        if not max(values):
            raise self.fields.wrong(key, 0, f"a whole number from 1 to {maximum}")
        return max(values)

    def window(self, default: int = 0) -> int | None:
        """Tokens of the sliding window, None where there is none. `default`: where the file does not say; 0: no window
        then. A window beyond the most positions is cut to them: position + window <= 2**31 - 1.
        """
        window = self.fields.integer("attention.sliding_window", default, minimum=0)
        return min(window, limits.MOST_POSITION) or None

    def local_rope(self, theta: float) -> RopeSpec:
        """The rope of layers with a window. `theta`: where the file does not say."""
        return RopeSpec(theta=self.fields.number("rope.freq_base_swa", theta, above=1.0, most=limits.MOST_THETA))

    def with_window_in(
        self, spec: ModelSpec, window: int | None, otherwise: Callable[[int], tuple[bool, ...]]
    ) -> ModelSpec:
        """`spec` with a window in the layers that the file marks; `otherwise` tells of a number of layers which they
        are where it marks none.
        """
        sliding = self.marked_layers("attention.sliding_window_pattern") or otherwise(spec.num_layers)
        if window is None or not any(sliding):
            return spec
        return replace(spec, sliding_window=window, sliding_layers=sliding)

    def refuse_window(self, spec: ModelSpec) -> ModelSpec:
        """`spec`. UnsupportedError for a window that any layer could notice, as the file does not say which layers have
        it, and those may be some or none.
        """
        window = self.window()
        if window is not None and window < self.fields.integer("context_length"):
            raise UnsupportedError(
                f"{self.path}: attention.sliding_window {window} is not supported for {spec.architecture} in GGUF, "
                "which does not say which layers have it"
            )
        return spec

    def moe(
        self,
        spec: ModelSpec,
        router: str = _ROUTER,
        *,
        size: int | None = None,
        normalise: bool = True,
        scores: tuple[int, ...] = (1,),
        group_score: GroupScore = "top2",
        epsilon: float = 0.0,
    ) -> MoeSpec:
        """The experts: how many, of which size, and in which layers, which are those that have a router.

        `router`: the Hugging Face name of a layer's, with `{layer}`. `size`: of an expert, where the file does not say;
        None: as the reference reader has it, the experts of a token share the length of an MLP. `normalise`: where the
        file does not say. `scores`: the values of expert_gating_func that the architecture has, the first where the
        file does not say; `group_score`, `epsilon`: see compute.ops.Routing.
        """
        fields, layers, inner = self.fields, spec.num_layers, spec.intermediate_size
        if scores == (1,):
            self._refuse_other_routing()
        scored = fields.integer("expert_gating_func", scores[0], minimum=0) or scores[0]
        if scored not in scores:
            wanted = " or ".join(f"{each} ({_SCORES[each]})" for each in scores)
            raise UnsupportedError(
                f"{self.path}: expert_gating_func {scored} is not supported for {spec.architecture}; homenode wants "
                f"{wanted}"
            )
        used = fields.integer("expert_used_count", maximum=limits.MOST_EXPERTS)
        size = max(inner // used, 1) if size is None else size
        dense = tuple(layer for layer in range(layers) if router.format(layer=layer) not in self.tensors)
        if len(dense) == layers:
            raise damaged(
                self.path,
                "experts",
                seen="no layer with a router",
                wanted="ffn_gate_inp.weight in the layers that have experts",
            )
        shared = next(
            (found for layer in range(layers) if layer not in dense if (found := self._shared_size(layer))), 0
        )
        return MoeSpec(
            num_experts=fields.integer("expert_count", maximum=limits.MOST_EXPERTS),
            experts_per_token=used,
            intermediate_size=fields.integer("expert_feed_forward_length", size, maximum=limits.MOST_INTERMEDIATE),
            normalise=fields.boolean("expert_weights_norm", normalise),
            shared_intermediate_size=(
                fields.integer("expert_shared_feed_forward_length", shared, maximum=limits.MOST_INTERMEDIATE)
                if shared
                else 0
            ),
            dense_layers=dense,
            score=_SCORES[scored],
            scale=fields.number("expert_weights_scale", 1.0, least=0.0) or 1.0,
            groups=fields.integer("expert_group_count", 1, minimum=0) or 1,
            groups_chosen=fields.integer("expert_group_used_count", 1, minimum=0) or 1,
            group_score=group_score,
            epsilon=epsilon,
        )

    def _refuse_other_routing(self) -> None:
        """UnsupportedError where experts are chosen or weighted in another way than by a softmax over all."""
        fields = self.fields
        for key in ("expert_gating_func", "expert_group_count", "expert_group_used_count"):
            if (seen := fields.integer(key, 1, minimum=0)) not in (0, 1):
                raise UnsupportedError(
                    f"{self.path}: {key} {seen} is not supported; homenode runs a softmax over all experts"
                )
        if (scale := fields.number("expert_weights_scale", 1.0, least=0.0)) not in (0.0, 1.0):
            raise UnsupportedError(f"{self.path}: expert_weights_scale {scale:g} is not supported; homenode wants 1")

    def _shared_size(self, layer: int) -> int:
        """Inner columns of the expert that every token uses in a layer, by the matrix that is there; 0: there is
        none.
        """
        names = (f"model.layers.{layer}.mlp.shared_expert{s}.gate_proj.weight" for s in ("", "s"))
        entry = next((self.tensors[name] for name in names if name in self.tensors), None)
        return entry.shape[0] if entry is not None and entry.shape else 0

    def _head_dim(self, hidden: int, heads: int) -> int:
        key = self.fields.optional_integer("attention.key_length", maximum=limits.MOST_HEAD_DIM) or derived_head_dim(
            self.fields, hidden, heads
        )
        value = self.fields.integer("attention.value_length", key, maximum=limits.MOST_HEAD_DIM)
        if value != key:
            raise UnsupportedError(
                f"{self.path}: keys of {key} and values of {format_count(value, 'element')} a head are not supported; "
                f"homenode wants both equal"
            )
        return key

    def _refuse_magnitude(self) -> None:
        key = "rope.scaling.yarn_log_multiplier"
        if self.fields.text("rope.scaling.type") == "yarn" and (
            seen := self.fields.optional_number(key, least=-1.0)
        ) not in (None, 0.0, -1.0):
            raise UnsupportedError(f"{self.path}: {key} {seen:g} is not supported; homenode wants 0")

    def _refuse_scale(self, head_dim: int) -> None:
        scale = self.fields.optional_number("attention.scale", least=0.0) or 0.0
        if scale and not math.isclose(scale, head_dim**-0.5, rel_tol=1e-4):
            raise UnsupportedError(
                f"{self.path}: attention.scale {scale:g} is not supported; homenode wants 1/sqrt({head_dim})"
            )

    def _vocab_size(self) -> int:
        """Rows of the token embedding. A vocabulary with more tokens than that would look up rows that do not exist."""
        embedding = self.tensors.get(limits.EMBEDDING)
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[0] > limits.MOST_VOCAB:
            seen = "none (is this a vocabulary without a model?)" if embedding is None else list(embedding.shape)
            raise damaged(
                self.path, "token_embd.weight", seen=seen, wanted=f"a matrix of at most {limits.MOST_VOCAB} rows"
            )
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise damaged(self.path, "tokenizer.ggml.tokens", seen=quoted(tokens), wanted="an array of strings")
        if len(tokens) > embedding.shape[0]:
            wanted = f"at most the {format_count(embedding.shape[0], 'row')} of the embedding"
            raise damaged(self.path, "tokenizer.ggml.tokens", seen=format_count(len(tokens), "token"), wanted=wanted)
        return embedding.shape[0]

    def _rope(self, default_theta: float, head_dim: int, position: int, whole_heads: bool) -> RopeSpec:
        fields, factors = self.fields, self.factors
        theta = fields.number("rope.freq_base", default_theta, above=1.0, most=limits.MOST_THETA)
        rotary = fields.integer("rope.dimension_count", head_dim, maximum=limits.MOST_HEAD_DIM)
        if rotary != head_dim and whole_heads:
            # The converter interleaves whole heads, so the stored order and a shorter rotation do not agree on which
            # elements turn.
            raise UnsupportedError(
                f"{self.path}: rope over {rotary} of {format_count(head_dim, 'element')} of a head is not supported in "
                f"llama GGUF files; homenode wants the whole head"
            )
        part = None if rotary == head_dim else rotary
        if LONG_FACTORS in factors and SHORT_FACTORS in factors:
            return RopeSpec(
                theta=theta,
                kind="longrope",
                rotary_dim=part,
                original_max_position=fields.integer(
                    "rope.scaling.original_context_length", position, maximum=limits.MOST_POSITION
                ),
                attention_factor=fields.number("rope.scaling.attn_factor", 1.0, least=0.0) or 1.0,
                short_factors=_rope_factors(factors[SHORT_FACTORS]),
                long_factors=_rope_factors(factors[LONG_FACTORS]),
            )
        return self._scaled_rope(theta, part, position, _rope_factors(factors[FACTORS]) if FACTORS in factors else ())

    def _scaled_rope(self, theta: float, rotary: int | None, position: int, divisors: tuple[float, ...]) -> RopeSpec:
        fields = self.fields
        linear = fields.number("rope.scale_linear", 1.0, least=0.0, most=1e6) or 1.0  # how early files spelled it
        factor = fields.number("rope.scaling.factor", linear, least=0.0, most=1e6) or 1.0
        kind = fields.text("rope.scaling.type") or ("linear" if factor != 1.0 else "none")
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return RopeSpec(theta=theta, rotary_dim=rotary, factors=divisors)
        if kind == "linear":
            return RopeSpec(theta=theta, kind=kind, rotary_dim=rotary, factor=factor, factors=divisors)
        if kind == "yarn":
            return self._yarn(theta, rotary, factor, position, divisors)
        raise UnsupportedError(
            f"{self.path}: rope scaling {quoted(kind)} is not supported; homenode runs none, linear and yarn in GGUF "
            f"files",
            kind=kind,
        )

    def _yarn(
        self, theta: float, rotary: int | None, factor: float, position: int, divisors: tuple[float, ...]
    ) -> RopeSpec:
        fields = self.fields
        if (seen := fields.optional_number("rope.scaling.yarn_ext_factor", least=-1.0)) not in (None, 1.0, -1.0):
            raise UnsupportedError(
                f"{self.path}: rope.scaling.yarn_ext_factor {seen:g} is not supported; homenode wants 1"
            )
        return RopeSpec(
            theta=theta,
            kind="yarn",
            rotary_dim=rotary,
            factor=factor,
            factors=divisors,
            original_max_position=fields.integer(
                "rope.scaling.original_context_length", position, maximum=limits.MOST_POSITION
            ),
            attention_factor=_yarn_scale(fields, factor),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        )


def _yarn_scale(fields: Fields, factor: float) -> float | None:
    """Return what cosines and sines are multiplied with; None for what YaRN prescribes for the factor.

    `yarn_attn_factor` is what converters make of a folder's `attention_factor`, the whole scale; 1, 0 and -1 are how
    others write that there is none. `attn_factor` multiplies.
    """
    times = fields.number("rope.scaling.attn_factor", 1.0, least=0.0) or 1.0
    whole = fields.number("rope.scaling.yarn_attn_factor", 1.0, least=-1.0, most=1e6)
    if whole > 0 and whole != 1.0:
        return times * whole
    return None if times == 1.0 else times * (1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0)


def _rope_factors(entry: TensorEntry) -> tuple[float, ...]:
    """The divisors of `rope_freqs.weight`, one for each pair of elements."""
    wanted = f"at most {limits.MOST_HEAD_DIM // 2} positive F32 numbers in a row"
    if entry.dtype.name != "F32" or len(entry.shape) != 1 or entry.shape[0] > limits.MOST_HEAD_DIM // 2:
        raise damaged(entry.file, entry.name, seen=f"{entry.dtype.name} {list(entry.shape)}", wanted=wanted)
    values = np.frombuffer(read_at(entry.file, entry.offset, entry.nbytes), "<f4").astype(np.float64)
    if not bool(np.all(np.isfinite(values) & (values > 0))):
        raise damaged(entry.file, entry.name, seen="a value that is not positive", wanted=wanted)
    return tuple(float(value) for value in values)
