"""CodeGen: GPT-J's block with q, v and k in one matrix, in four parts of heads."""

from __future__ import annotations

from homenode.model.architectures import gptj
from homenode.model.architectures.architecture import renamed
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import runs_of
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

PARTS = 4  # processors that it was trained on


def _split(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, q, k and v each by itself. CheckpointError for a matrix that has no four such parts."""
    found, width = {}, spec.num_heads * spec.head_dim
    for name, entry in tensors.items():
        front, fused, kind = name.partition("qvk_proj.")
        if not fused:
            found[name] = entry
            continue
        if spec.num_heads % PARTS or entry.shape[:1] != (3 * width,):
            wanted = f"q, v and k of {width} rows, of {PARTS} parts with as many heads"
            raise damaged(entry.file, f"shape of {entry.name}", seen=list(entry.shape), wanted=wanted)
        for place, part in enumerate("qvk"):
            each, run = f"{front}{part}_proj.{kind}", width // PARTS
            found[each] = runs_of(entry, each, place * run, width, run, 3 * run)
    return found


ARCHITECTURE = gptj.ARCHITECTURE.of_class(
    "codegen",
    "CodeGenForCausalLM",
    harmless=gptj.ARCHITECTURE.folder.harmless,
    modules=renamed("h.{layer}.", "attn.qkv_proj=self_attn.qvk_proj") | renamed("h.{layer}.", *gptj.MODULES),
    convert=_split,
)
