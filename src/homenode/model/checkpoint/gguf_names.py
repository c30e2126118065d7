"""GGUF tensor names -> the Hugging Face names the rest of homenode uses, by the parameter table of an architecture."""

from __future__ import annotations

import re

from homenode.model.architectures.architecture import Architecture
from homenode.model.checkpoint.fused_tensors import FUSED

_IN_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<rest>.+)")
_ONE_EXPERT = re.compile(r"(?P<part>ffn_gate|ffn_up|ffn_down)\.(?P<expert>0|[1-9][0-9]{0,4})\.weight")


class GgufNames:
    """The names of an architecture's tensors in GGUF files. One that no table has is left as it is."""

    def __init__(self, architecture: Architecture) -> None:
        table = architecture.parameters
        self._experts = {p.gguf_name: p.name for p in table if p.per_expert}
        single = {p.gguf_name: p.name for p in table if not p.per_expert and not p.per_head}
        self._others = single | dict(architecture.gguf.names)

    def hugging_face_name(self, name: str) -> str:
        """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            return self._others.get(name, name)
        if known := self._others.get(f"blk.{{layer}}.{match['rest']}"):
            return known.format(layer=match["layer"])
        one = _ONE_EXPERT.fullmatch(match["rest"])  # how files were written before experts were stacked
        stacked = self._experts.get(f"blk.{{layer}}.{one['part']}_exps.weight") if one else None
        return stacked.format(layer=match["layer"], expert=one["expert"]) if one and stacked else name

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return those of all that the tensor holds: one, or several where it holds several matrices or
        their biases.
        """
        match = _IN_LAYER.fullmatch(name)
        parts = _parts(match["rest"]) if match else ()
        if match is None or f"blk.{{layer}}.{match['rest']}" in self._others or not self._others.keys() >= set(parts):
            return (self.hugging_face_name(name),)
        return tuple(self._others[part].format(layer=match["layer"]) for part in parts) or (
            self.hugging_face_name(name),
        )

    def expert_names(self, name: str, experts: int) -> tuple[tuple[str, ...], ...]:
        """The same for each expert of those that are stacked in the tensor `blk.3.ffn_gate_exps.weight`; none for
        another tensor.
        """
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            return ()
        parts = _parts(match["rest"]) or (f"blk.{{layer}}.{match['rest']}",)
        stacked = [self._experts[part] for part in parts if part in self._experts]
        if len(stacked) != len(parts):
            return ()
        return tuple(
            tuple(each.format(layer=match["layer"], expert=expert) for each in stacked) for expert in range(experts)
        )


def _parts(rest: str) -> tuple[str, ...]:
    """The tensors, as parameter tables name them, whose rows the tensor `rest` of a block holds; none where it is no
    such tensor.
    """
    stem, _, kind = rest.rpartition(".")
    return tuple(f"blk.{{layer}}.{part}.{kind}" for part in FUSED.get(stem, ()))
