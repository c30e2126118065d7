"""Folders that stack the matrices of a layer's experts in one tensor, gate and up together -> an entry for each, as
parameter tables name them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of, slice_of, transposed
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count


@dataclass(frozen=True)
class StackedExperts:
    """The way in which a class of models stacks experts. All names are within a layer; those of stacks may end in
    `.weight`.

    `gate_up`: [experts, gate rows and up rows, columns]; `down`: [experts, rows, columns]. `expert`: the module
    that has those of one, gate_proj, up_proj and down_proj, with `{expert}`. `turned`: the last two dimensions of
    matrices are the other way round where they are floats (4-bit formats always hold rows). `alternating`: rows of gate
    and up alternate, gate first; else all of gate come first. Biases are `gate_up` and `down` with `_bias`.
    """

    gate_up: str = "mlp.experts.gate_up_proj"
    down: str = "mlp.experts.down_proj"
    expert: str = "mlp.experts.{expert}"
    turned: bool = False
    alternating: bool = False

    def split(self, tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
        """The tensors of a model, stacks as an entry for each matrix and bias. CheckpointError for one of another
        shape.
        """
        found: dict[str, TensorEntry] = {}
        for name, entry in tensors.items():
            for part in self._parts(name, entry, spec):
                if part.name in found:
                    raise damaged(entry.file, f"tensor {name}", seen=f"{part.name}, too", wanted="every matrix once")
                found[part.name] = part
        return found

    def _parts(self, name: str, entry: TensorEntry, spec: ModelSpec) -> Iterator[TensorEntry]:
        stem = name.removesuffix(".weight")
        kind = "bias" if stem.endswith("_bias") else "weight"
        stem = stem.removesuffix("_bias")
        of_down = stem.endswith(f".{self.down}")
        if not of_down and not stem.endswith(f".{self.gate_up}"):
            yield entry
            return
        layer = stem.removesuffix(self.down if of_down else self.gate_up)
        experts, dimensions = spec.moe.num_experts if spec.moe else 0, 2 if kind == "bias" else 3
        if len(entry.shape) != dimensions or entry.shape[0] != experts:
            wanted = f"{dimensions} dimensions, {format_count(experts, 'expert')} first"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        for expert in range(experts):
            own = layer + self.expert.format(expert=expert)
            gate, up, down = (f"{own}.{each}_proj.{kind}" for each in ("gate", "up", "down"))
            one = slice_of(entry, expert, name)
            if self.turned and kind == "weight" and one.dtype.block == 1:
                one = transposed(one, down)
            yield from [rows_of(one, down, 0, one.shape[0])] if of_down else self._gate_and_up(one, gate, up)

    def _gate_and_up(self, both: TensorEntry, gate: str, up: str) -> list[TensorEntry]:
        half, rest = divmod(both.shape[0], 2)
        if rest or not half:
            raise damaged(both.file, f"rows of {both.name}", seen=both.shape[0], wanted="as many of gate as of up")
        first, step = (1, 2) if self.alternating else (half, 1)
        return [rows_of(both, gate, 0, half, step), rows_of(both, up, first, half, step)]
