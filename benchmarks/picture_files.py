"""Models that see, of random weights in the shapes of published ones, as GGUF files for `benchmarks.pictures`:

    python -m benchmarks.picture_files FOLDER [NAME]... [--tower F16,Q8_0] [--layers N]

A text model (Q8_0) and a file `mmproj` for each format of the tower, in which the tensors that converters keep apart
are kept apart as well: vectors, tables of positions, patches, and rows that end within a block. `--layers` makes
another number of layers of the text, where it is the tower that is looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from benchmarks.shape_files import Named, add_figures, add_vocabulary, write_tensors
from homenode.dtypes import BY_NAME

_CONTEXT = 8192
_TEXT_FORMAT = "Q8_0"
_TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}PICTURE{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Text:
    """A text model: its architecture, lengths, words, and further figures."""

    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    words: int
    figures: Mapping[str, Any]
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")  # of a layer
    head_norms: bool = True


@dataclass(frozen=True)
class Eyes:
    """A tower and its projector: lengths, pixels of a side that has places, and further figures."""

    projector: str
    layers: int
    hidden: int
    inner: int
    heads: int
    patch: int
    side: int
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class PictureShape:
    """A model that sees. `marks`: its tokens about pictures; `written`: a picture as a chat template has it."""

    text: Text
    eyes: Eyes
    marks: tuple[str, ...]
    written: str


_TILES = tuple(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2))
SHAPES = {
    "qwen3-vl-2b": PictureShape(
        Text(
            "qwen3vl", 28, 2048, 6144, 16, 8, 128, 151936,
            {"rope.freq_base": 5e6, "rope.dimension_sections": [24, 20, 20, 0], "n_deepstack_layers": 3},
        ),
        Eyes(
            "qwen3vl_merger", 24, 1024, 4096, 16, 16, 768,
            {"spatial_merge_size": 2, "is_deepstack_layers": [layer in (5, 11, 17) for layer in range(24)]},
        ),
        ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "gemma-3-4b": PictureShape(
        Text(
            "gemma3", 34, 2560, 10240, 8, 4, 256, 262144,
            {"rope.freq_base": 1e6, "attention.sliding_window": 1024},
            norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        ),
        Eyes("gemma3", 27, 1152, 4304, 16, 14, 896, {"projector.scale_factor": 4}),
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        "<start_of_image>",
    ),
    # Pictures are scaled to four tiles and one of the whole, not to seventeen as the published processor has it
    "smolvlm-256m": PictureShape(
        Text(
            "llama", 30, 576, 1536, 9, 3, 64, 49280, {"rope.freq_base": 1e5, "rope.dimension_count": 64},
            head_norms=False,
        ),
        Eyes("idefics3", 12, 768, 3072, 12, 16, 512, {"projector.scale_factor": 4, "preproc_image_size": 1024}),
        ("\n\n", "<image>", "<fake_token_around_image>", "<global-img>", *_TILES),
        "<image>",
    ),
}  # fmt: skip


def write_text(folder: Path, name: str, layers: int | None = None) -> Path:
    """The file of a text model in `folder`; `layers`: so many, None: all."""
    shape, path = SHAPES[name], folder / f"{name}-{_TEXT_FORMAT}.gguf"
    text = shape.text
    count = text.layers if layers is None else layers
    figures = {
        "block_count": count,
        "context_length": _CONTEXT,
        "embedding_length": text.hidden,
        "feed_forward_length": text.inner,
        "attention.head_count": text.heads,
        "attention.head_count_kv": text.kv_heads,
        "attention.key_length": text.head,
        "attention.value_length": text.head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **text.figures,
    }
    writer = gguf.GGUFWriter(path, text.architecture)
    add_figures(writer, {f"{text.architecture}.{key}": value for key, value in figures.items()})
    add_vocabulary(writer, text.words, shape.marks)
    writer.add_chat_template(_TEMPLATE.replace("PICTURE", shape.written))
    write_tensors(writer, [(*each, _format_of(each, _TEXT_FORMAT)) for each in _text_tensors(text, count)])
    return path


def write_tower(folder: Path, name: str, format: str) -> Path:
    """The file of a tower in `folder`."""
    shape, path = SHAPES[name], folder / f"mmproj-{name}-{format}.gguf"
    eyes = shape.eyes
    figures = {
        "embedding_length": eyes.hidden,
        "feed_forward_length": eyes.inner,
        "block_count": eyes.layers,
        "attention.head_count": eyes.heads,
        "attention.layer_norm_epsilon": 1e-6,
        "projection_dim": shape.text.hidden,
        "patch_size": eyes.patch,
        "image_size": eyes.side,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        **eyes.figures,
    }
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_string("clip.projector_type", eyes.projector)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    add_figures(writer, {f"clip.vision.{key}": value for key, value in figures.items()})
    tensors = [*_tower_tensors(eyes), *_PROJECTORS[eyes.projector](eyes, shape.text.hidden)]
    write_tensors(writer, [(*each, _format_of(each, format)) for each in tensors])
    return path


def _format_of(tensor: Named, format: str) -> str:
    """As converters have it, so that no engine has a file that its readers have not seen."""
    name, lengths = tensor
    if len(lengths) == 1 or "position_embd" in name or "patch_embd" in name:
        return "F32"
    if "input_projection" in name or lengths[-1] % BY_NAME[format].block:
        return "F16"
    return format


def _text_tensors(text: Text, layers: int) -> Iterator[Named]:
    yield "token_embd.weight", (text.words, text.hidden)
    yield "output_norm.weight", (text.hidden,)
    for layer in range(layers):
        block = f"blk.{layer}."
        for norm in text.norms:
            yield f"{block}{norm}.weight", (text.hidden,)
        if text.head_norms:
            yield f"{block}attn_q_norm.weight", (text.head,)
            yield f"{block}attn_k_norm.weight", (text.head,)
        yield f"{block}attn_q.weight", (text.heads * text.head, text.hidden)
        yield f"{block}attn_k.weight", (text.kv_heads * text.head, text.hidden)
        yield f"{block}attn_v.weight", (text.kv_heads * text.head, text.hidden)
        yield f"{block}attn_output.weight", (text.hidden, text.heads * text.head)
        yield f"{block}ffn_gate.weight", (text.inner, text.hidden)
        yield f"{block}ffn_up.weight", (text.inner, text.hidden)
        yield f"{block}ffn_down.weight", (text.hidden, text.inner)


def _with_bias(name: str, *lengths: int) -> Iterator[Named]:
    yield f"{name}.weight", lengths
    yield f"{name}.bias", lengths[:1]


def _tower_tensors(eyes: Eyes) -> Iterator[Named]:
    yield from _with_bias("v.patch_embd", eyes.hidden, 3, eyes.patch, eyes.patch)
    yield "v.position_embd.weight", ((eyes.side // eyes.patch) ** 2, eyes.hidden)
    yield from _with_bias("v.post_ln", eyes.hidden)
    joined = eyes.projector == "qwen3vl_merger"
    if joined:  # one for each of two frames
        yield "v.patch_embd.weight.1", (eyes.hidden, 3, eyes.patch, eyes.patch)
    for layer in range(eyes.layers):
        block = f"v.blk.{layer}."
        yield from _with_bias(f"{block}ln1", eyes.hidden)
        yield from _with_bias(f"{block}ln2", eyes.hidden)
        if joined:
            yield from _with_bias(f"{block}attn_qkv", 3 * eyes.hidden, eyes.hidden)
        else:
            for part in "qkv":
                yield from _with_bias(f"{block}attn_{part}", eyes.hidden, eyes.hidden)
        yield from _with_bias(f"{block}attn_out", eyes.hidden, eyes.hidden)
        yield from _with_bias(f"{block}ffn_up", eyes.inner, eyes.hidden)
        yield from _with_bias(f"{block}ffn_down", eyes.hidden, eyes.inner)


def _qwen_projector(eyes: Eyes, text: int) -> Iterator[Named]:
    four = 4 * eyes.hidden
    yield from _with_bias("mm.0", four, four)
    yield from _with_bias("mm.2", text, four)
    for layer, marked in enumerate(eyes.figures["is_deepstack_layers"]):
        if marked:
            yield from _with_bias(f"v.deepstack.{layer}.norm", four)
            yield from _with_bias(f"v.deepstack.{layer}.fc1", four, four)
            yield from _with_bias(f"v.deepstack.{layer}.fc2", text, four)


def _gemma_projector(eyes: Eyes, text: int) -> Iterator[Named]:
    yield "mm.input_projection.weight", (eyes.hidden, text)
    yield "mm.soft_emb_norm.weight", (eyes.hidden,)


def _idefics_projector(eyes: Eyes, text: int) -> Iterator[Named]:
    yield "mm.model.fc.weight", (text, eyes.hidden * eyes.figures["projector.scale_factor"] ** 2)


_PROJECTORS = {"qwen3vl_merger": _qwen_projector, "gemma3": _gemma_projector, "idefics3": _idefics_projector}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print their names."""
    parser = argparse.ArgumentParser("python -m benchmarks.picture_files", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; none: all of them")
    parser.add_argument("--tower", default="F16,Q8_0", metavar="FORMAT,...")
    parser.add_argument("--layers", type=int, metavar="N", help="of the text")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.names if name not in SHAPES]:
        parser.error(f"there is no shape {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    formats = given.tower.split(",")
    if unknown := [format for format in formats if format not in ("F16", "F32", "Q8_0")]:
        parser.error(f"--tower {', '.join(unknown)}: wanted F16, F32 or Q8_0")
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.names or SHAPES:
        print(write_text(given.folder, name, given.layers), flush=True)
        for format in formats:
            print(write_tower(given.folder, name, format), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
