"""GGUF tensor names -> the Hugging Face names the rest of homenode uses, by the parameter table of an architecture."""

from __future__ import annotations

import re

from homenode.model.architectures.architecture import Architecture

_IN_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<rest>.+)")
_ONE_EXPERT = re.compile(r"(?P<part>ffn_gate|ffn_up|ffn_down)\.(?P<expert>0|[1-9][0-9]{0,4})\.weight")


class GgufNames:
    """The names of an architecture's tensors in GGUF files. One that no table has is left as it is."""

    def __init__(self, architecture: Architecture) -> None:
        table = architecture.parameters
        self._experts = {p.gguf_name: p.name for p in table if p.per_expert}
        self._others = {p.gguf_name: p.name for p in table if not p.per_expert} | dict(architecture.gguf.names)

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

    def expert_names(self, name: str, experts: int) -> tuple[str, ...]:
        """Those of the experts whose matrices are stacked in the tensor `blk.3.ffn_gate_exps.weight`; none for another
        tensor.
        """
        match = _IN_LAYER.fullmatch(name)
        stacked = self._experts.get(f"blk.{{layer}}.{match['rest']}") if match else None
        if match is None or stacked is None:
            return ()
        return tuple(stacked.format(layer=match["layer"], expert=expert) for expert in range(experts))
