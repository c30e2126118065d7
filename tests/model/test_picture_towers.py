"""Small towers of each family, of random weights: the native core and NumPy make the same rows of a picture, as many as
the prompt has placeholders for, and a picture makes them whatever was encoded before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import Backend, FloatArray
from homenode.compute.reference import ReferenceBackend
from homenode.errors import CheckpointError
from homenode.model.checkpoint.folder import has_tensors_of_tower
from homenode.model.pictures.classes import CLASSES
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.registry import family_of_class
from homenode.model.pictures.tower import Tower, TowerTensors

images = pytest.importorskip("PIL.Image")
WIDTH, INNER, TEXT, LAYERS, HEADS, SIDE = 32, 48, 40, 2, 2, 56
CHATTER = {"hidden_size": TEXT, "rms_norm_eps": 1e-6}
VIT = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
SQUARE = VIT | {"image_size": SIDE, "patch_size": 14}
DEEP = {"hidden_size": WIDTH, "intermediate_size": INNER, "depth": 3, "num_heads": HEADS, "patch_size": 16}
PIECES = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE]]
PROJECTOR = {"multi_modal_projector.linear_1": (TEXT, WIDTH), "multi_modal_projector.linear_2": (TEXT, TEXT)}


def vit(front: str, names: str, mlp: str, out: str, norms: tuple[str, str], layers: int = LAYERS) -> dict[str, Any]:
    """Shapes of blocks, and biases of all."""
    found: dict[str, Any] = {}
    for n in range(layers):
        for part in "qkv":
            found[f"{front}{n}.{names}.{part}_proj"] = (WIDTH, WIDTH)
        found[f"{front}{n}.{names}.{out}"] = (WIDTH, WIDTH)
        first, second = mlp.split()
        found |= {f"{front}{n}.{first}": (INNER, WIDTH), f"{front}{n}.{second}": (WIDTH, INNER)}
        found |= {f"{front}{n}.{norm}": (WIDTH,) for norm in norms}
    return found


def siglip(front: str, patch: int = 14, side: int = SIDE, clip: bool = False) -> dict[str, Any]:
    found = vit(f"{front}encoder.layers.", "self_attn", "mlp.fc1 mlp.fc2", "out_proj", ("layer_norm1", "layer_norm2"))
    found |= {f"{front}embeddings.patch_embedding": (WIDTH, 3, patch, patch), f"{front}post_layernorm": (WIDTH,)}
    found[f"={front}embeddings.position_embedding.weight"] = ((side // patch) ** 2 + clip, WIDTH)
    return found | ({f"={front}embeddings.class_embedding": (WIDTH,), f"{front}pre_layrnorm": (WIDTH,)} if clip else {})


def merger(front: str, norm: int) -> dict[str, Any]:
    return {f"{front}.norm": (norm,), f"{front}.linear_fc1": (4 * WIDTH,) * 2, f"{front}.linear_fc2": (TEXT, 4 * WIDTH)}


def qwen(layers: int, deep: int) -> dict[str, Any]:
    found: dict[str, Any] = {"model.visual.patch_embed.proj": (WIDTH, 3, 2, 16, 16)}
    found["=model.visual.pos_embed.weight"] = (36, WIDTH)
    for n in range(layers):
        of = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH), "norm1": (WIDTH,), "norm2": (WIDTH,)}
        of |= {"mlp.linear_fc1": (INNER, WIDTH), "mlp.linear_fc2": (WIDTH, INNER)}
        found |= {f"model.visual.blocks.{n}.{name}": shape for name, shape in of.items()}
    found |= merger("model.visual.merger", WIDTH)
    for n in range(deep):
        found |= merger(f"model.visual.deepstack_merger_list.{n}", 4 * WIDTH)
    return found


def qwen2() -> dict[str, Any]:
    found: dict[str, Any] = {"=visual.patch_embed.proj.weight": (WIDTH, 3, 2, 14, 14), "visual.merger.ln_q": (WIDTH,)}
    for n in range(3):
        of = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH), "norm1": (WIDTH,), "norm2": (WIDTH,)}
        of |= {f"mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")} | {"mlp.down_proj": (WIDTH, INNER)}
        found |= {f"visual.blocks.{n}.{name}": shape for name, shape in of.items()}
    return found | {"visual.merger.mlp.0": (4 * WIDTH, 4 * WIDTH), "visual.merger.mlp.2": (TEXT, 4 * WIDTH)}


def gemma4() -> dict[str, Any]:
    front = "model.vision_tower."
    found: dict[str, Any] = {
        f"={front}patch_embedder.input_proj.weight": (WIDTH, 48),
        f"={front}patch_embedder.position_embedding_table": (2, 128, WIDTH),
        "=model.embed_vision.embedding_projection.weight": (TEXT, WIDTH),
        f"={front}std_bias": (WIDTH,),
        f"={front}std_scale": (WIDTH,),
    }
    for n in range(LAYERS):
        of = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in "qkvo"} | {"mlp.down_proj": (WIDTH, INNER)}
        of |= {f"mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
        found |= {f"={front}encoder.layers.{n}.{name}.linear.weight": shape for name, shape in of.items()}
        ends = [f"{side}_{end}" for side in ("input", "output") for end in ("min", "max")]
        found |= {f"={front}encoder.layers.{n}.{name}.{end}": () for name in of for end in ends}
        norms = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm".split()
        found |= {f"{front}encoder.layers.{n}.{norm}": (WIDTH,) for norm in norms}
        found |= {f"{front}encoder.layers.{n}.self_attn.{norm}": (16,) for norm in ("q_norm", "k_norm")}
    return found


def pixtral() -> dict[str, Any]:
    front = "vision_tower.transformer.layers."
    found = vit(
        front, "attention", "feed_forward.gate_proj feed_forward.down_proj", "o_proj", ("attention_norm", "ffn_norm")
    )
    found |= {f"{front}{n}.feed_forward.up_proj": (INNER, WIDTH) for n in range(LAYERS)}
    found |= {"vision_tower.patch_conv": (WIDTH, 3, 14, 14), "vision_tower.ln_pre": (WIDTH,)}
    found |= {
        "multi_modal_projector.norm": (WIDTH,),
        "multi_modal_projector.patch_merger.merging_layer": (WIDTH, 4 * WIDTH),
    }
    return found | PROJECTOR


def internvl() -> dict[str, Any]:
    front = "vision_tower.encoder.layer."
    found = vit(front, "attention", "mlp.fc1 mlp.fc2", "projection_layer", ("layernorm_before", "layernorm_after"))
    found |= {f"={front}{n}.lambda_{k}": (WIDTH,) for n in range(LAYERS) for k in (1, 2)}
    found["vision_tower.embeddings.patch_embeddings.projection"] = (WIDTH, 3, 14, 14)
    found |= {"=vision_tower.embeddings.cls_token": (1, 1, WIDTH)}
    found["=vision_tower.embeddings.position_embeddings"] = (1, 17, WIDTH)
    found |= {"multi_modal_projector.layer_norm": (4 * WIDTH,), "multi_modal_projector.linear_1": (TEXT, 4 * WIDTH)}
    return found | {"multi_modal_projector.linear_2": (TEXT, TEXT)}


def blocks(front: str, count: int, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes of so many blocks; a name with = in front is that of a tensor."""
    return {
        f"={front}{n}.{name[1:]}" if name.startswith("=") else f"{front}{n}.{name}": shape
        for n in range(count)
        for name, shape in parts.items()
    }


def qwen2_plain() -> dict[str, Any]:
    found = {name: shape for name, shape in qwen2().items() if ".blocks." not in name}
    of = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH), "norm1": (WIDTH,), "norm2": (WIDTH,)}
    return found | blocks("visual.blocks.", 3, of | {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)})


def glm(places: bool) -> dict[str, Any]:
    front = "model.visual."
    of: dict[str, Any] = {"attn.qkv": (3 * WIDTH, WIDTH), "=attn.proj.weight": (WIDTH, WIDTH)}
    of |= {"=norm1.weight": (WIDTH,), "=norm2.weight": (WIDTH,), "=mlp.down_proj.weight": (WIDTH, INNER)}
    of |= {f"=mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
    if not places:
        of |= {f"=attn.{name}_norm.weight": (WIDTH // HEADS,) for name in "qk"}
    found = blocks(f"{front}blocks.", 3, of) | {f"{front}patch_embed.proj": (WIDTH, 3, 2, 14, 14)}
    if places:
        found |= {f"={front}embeddings.position_embedding.weight": (16, WIDTH)}
        found |= {f"={front}post_conv_layernorm.weight": (WIDTH,)}
    found |= {f"={front}post_layernorm.weight": (WIDTH,), f"{front}downsample": (TEXT, WIDTH, 2, 2)}
    found |= {f"={front}merger.proj.weight": (TEXT, TEXT), f"{front}merger.post_projection_norm": (TEXT,)}
    found |= {f"={front}merger.{name}_proj.weight": (INNER, TEXT) for name in ("gate", "up")}
    return found | {f"={front}merger.down_proj.weight": (TEXT, INNER)}


def kimi() -> dict[str, Any]:
    front = "vision_tower."
    of = {"norm0": (WIDTH,), "norm1": (WIDTH,), "wqkv": (3 * WIDTH, WIDTH), "wo": (WIDTH, WIDTH)}
    found = blocks(f"{front}encoder.blocks.", 3, of | {"mlp.fc0": (INNER, WIDTH), "mlp.fc1": (WIDTH, INNER)})
    found |= {f"{front}patch_embed.proj": (WIDTH, 3, 14, 14), f"={front}patch_embed.pos_emb.weight": (4, 6, WIDTH)}
    found |= {f"{front}encoder.final_layernorm": (WIDTH,), "mm_projector.pre_norm": (WIDTH,)}
    return found | {"mm_projector.proj.0": (4 * WIDTH, 4 * WIDTH), "mm_projector.proj.2": (TEXT, 4 * WIDTH)}


def siglip2() -> dict[str, Any]:
    front = "model.vision_tower."
    found = siglip(front, 16, 64) | {f"{front}embeddings.patch_embedding": (WIDTH, 3 * 16 * 16)}
    found |= {"model.multi_modal_projector.layer_norm": (4 * WIDTH,)}
    found |= {"model.multi_modal_projector.linear_1": (INNER, 4 * WIDTH)}
    return found | {"model.multi_modal_projector.linear_2": (TEXT, INNER)}


def llama4() -> dict[str, Any]:
    norms = ("input_layernorm", "post_attention_layernorm")
    found = vit("vision_model.model.layers.", "self_attn", "mlp.fc1 mlp.fc2", "o_proj", norms)
    found |= {"=vision_model.patch_embedding.linear.weight": (WIDTH, 3 * 14 * 14)}
    found |= {"=vision_model.class_embedding": (WIDTH,), "=vision_model.positional_embedding_vlm": (17, WIDTH)}
    found |= {"vision_model.layernorm_pre": (WIDTH,), "vision_model.layernorm_post": (WIDTH,)}
    found |= {"=vision_model.vision_adapter.mlp.fc1.weight": (INNER, 4 * WIDTH)}
    found |= {"=vision_model.vision_adapter.mlp.fc2.weight": (INNER, INNER)}
    return found | {"=multi_modal_projector.linear_1.weight": (TEXT, INNER)}


def minicpm() -> dict[str, Any]:
    front = "model.vision_tower."
    found = siglip(front, side=112) | {f"{front}vit_merger.layer_norm1": (WIDTH,)}
    found |= {f"{front}vit_merger.self_attn.{part}_proj": (WIDTH, WIDTH) for part in "qkv"}
    found |= {f"{front}vit_merger.self_attn.out_proj": (WIDTH, WIDTH), f"{front}vit_merger.pre_norm": (4 * WIDTH,)}
    found |= {f"{front}vit_merger.linear_1": (INNER, 4 * WIDTH), f"{front}vit_merger.linear_2": (WIDTH, INNER)}
    found |= {"model.merger.mlp.0.pre_norm": (4 * WIDTH,), "model.merger.mlp.0.linear_1": (4 * WIDTH, 4 * WIDTH)}
    return found | {"model.merger.mlp.0.linear_2": (TEXT, 4 * WIDTH)}


def resampler() -> dict[str, Any]:
    found = siglip("vpm.", side=112) | {"resampler.kv_proj": (128, WIDTH), "resampler.attn.out_proj": (128, 128)}
    found |= {f"resampler.{norm}": (128,) for norm in ("ln_q", "ln_kv", "ln_post")}
    found |= {"=resampler.query": (4, 128), "=resampler.proj": (128, 128)}
    return found | {"=resampler.attn.in_proj_weight": (384, 128), "=resampler.attn.in_proj_bias": (384,)}


def sam(views: str) -> dict[str, Any]:
    """SAM in windows of 3 of 8 patches, the last layer all of them, its rows as wide as what is behind it."""
    front = "model.sam_model."
    of = {"norm1": (WIDTH,), "norm2": (WIDTH,), "attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    of |= {"mlp.lin1": (INNER, WIDTH), "mlp.lin2": (WIDTH, INNER)}
    found = blocks(f"{front}blocks.", LAYERS, of) | {f"{front}patch_embed.proj": (WIDTH, 3, 16, 16)}
    for n, side in enumerate((3, 8)):
        found |= {f"={front}blocks.{n}.attn.rel_pos_{key}": (2 * side - 1, WIDTH // HEADS) for key in "hw"}
    found |= {f"={front}pos_embed": (1, 8, 8, WIDTH), f"={front}neck.0.weight": (12, WIDTH, 1, 1)}
    found |= {f"={front}neck.2.weight": (10, 12, 3, 3), f"{front}neck.1": (12,), f"{front}neck.3": (10,)}
    found |= {f"={front}net_2.weight": (16, 10, 3, 3), f"={front}net_3.weight": (WIDTH, 16, 3, 3)}
    return found | {"=model.view_seperator": (TEXT,)} | {f"={name}": (TEXT,) for name in views.split()}


def ocr() -> dict[str, Any]:
    front = "model.vision_model."
    of = {"self_attn.qkv_proj": (3 * WIDTH, WIDTH), "self_attn.out_proj": (WIDTH, WIDTH)}
    of |= {"layer_norm1": (WIDTH,), "layer_norm2": (WIDTH,), "mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
    found = sam("model.image_newline") | blocks(f"{front}transformer.layers.", LAYERS, of)
    found |= {f"={front}embeddings.class_embedding": (WIDTH,), f"{front}pre_layrnorm": (WIDTH,)}
    found[f"={front}embeddings.position_embedding.weight"] = (5, WIDTH)
    return found | {"model.projector.layers": (TEXT, 2 * WIDTH)}


def ocr2() -> dict[str, Any]:
    front = "model.qwen2_model.model.model."
    of: dict[str, Any] = {f"=mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
    of |= {"self_attn.q_proj": (WIDTH, WIDTH), "=self_attn.o_proj.weight": (WIDTH, WIDTH)}
    of |= {f"self_attn.{key}_proj": (WIDTH // HEADS, WIDTH) for key in "kv"} | {"=mlp.down_proj.weight": (WIDTH, INNER)}
    of |= {f"={name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    found = sam("") | blocks(f"{front}layers.", LAYERS, of) | {f"={front}norm.weight": (WIDTH,)}
    found |= {f"=model.qwen2_model.query_{name}.weight": (count, WIDTH) for name, count in (("768", 1), ("1024", 4))}
    return found | {"model.projector.layers": (TEXT, WIDTH)}


SAM = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "window_size": 3,
       "global_attn_indexes": [1]}  # fmt: skip
VIEWS = {"size": {"height": 128, "width": 128}, "tile_size": 64, "max_patches": 4}
QWEN_SIZES = {"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 32768}}
# By class: the tower's configuration, further fields of config.json, those of the processor, and shapes of tensors.
TOWERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Qwen3VLForConditionalGeneration": (
        DEEP | {"deepstack_visual_indexes": [0, 2]}, {"image_token_id": 5}, QWEN_SIZES, qwen(3, 2),
    ),
    "Qwen3_5ForConditionalGeneration": (DEEP, {"image_token_id": 5}, QWEN_SIZES, qwen(3, 0)),
    "Qwen2_5_VLForConditionalGeneration": (
        DEEP | {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        {"image_token_id": 5},
        {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 32768}},
        qwen2(),
    ),
    "Qwen2VLForConditionalGeneration": (
        {"embed_dim": WIDTH, "hidden_size": TEXT, "depth": 3, "num_heads": HEADS, "patch_size": 14},
        {"image_token_id": 5},
        {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 32768}},
        qwen2_plain(),
    ),
    "Glm4vForConditionalGeneration": (
        DEEP | {"patch_size": 14}, {"image_token_id": 5},
        {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 65536}}, glm(places=True),
    ),
    "GlmOcrForConditionalGeneration": (
        DEEP | {"patch_size": 14}, {"image_token_id": 5},
        {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 65536}}, glm(places=False),
    ),
    "Kimi_K25ForConditionalGeneration": (
        VIT | {"num_hidden_layers": 3, "patch_size": 14}, {"image_token_id": 5}, {"max_patches": 24}, kimi(),
    ),
    "Lfm2VlForConditionalGeneration": (
        VIT | {"patch_size": 16}, {"image_token_id": 5},
        {"tile_size": 64, "min_image_tokens": 2, "max_image_tokens": 4, "max_pixels_tolerance": 1, "max_tiles": 4},
        siglip2(),
    ),
    "Llama4ForConditionalGeneration": (
        SQUARE, {"image_token_index": 5}, {"size": {"height": SIDE, "width": SIDE}, "max_patches": 4}, llama4(),
    ),
    "LlavaOnevisionForConditionalGeneration": (
        SQUARE | {"model_type": "siglip_vision_model"},
        {"image_token_index": 5, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
         "vision_aspect_ratio": "anyres_max_1"},
        {"size": {"height": SIDE, "width": SIDE}, "do_center_crop": None, "image_grid_pinpoints": PIECES},
        siglip("vision_tower.vision_model.") | PROJECTOR | {"=image_newline": (TEXT,)},
    ),
    "DeepseekOCRForCausalLM": ({"sam_config": SAM, "encoder_config": VIT}, {"image_token_id": 5}, VIEWS, ocr()),
    "DeepseekOcr2ForConditionalGeneration": (
        {"sam_config": SAM, "encoder_config": VIT | {"num_key_value_heads": 1}}, {"image_token_id": 5}, VIEWS, ocr2(),
    ),
    "Gemma4ForConditionalGeneration": (
        VIT | {"head_dim": 16, "patch_size": 4, "use_clipped_linears": True, "standardize": True},
        {"image_token_id": 5},
        {"patch_size": 4, "max_soft_tokens": 70, "pooling_kernel_size": 3},
        gemma4(),
    ),
    "Gemma3ForConditionalGeneration": (
        SQUARE, {"mm_tokens_per_image": 4, "image_token_index": 5}, {"size": {"height": SIDE, "width": SIDE}},
        siglip("vision_tower.vision_model.") | {"=multi_modal_projector.mm_input_projection_weight": (WIDTH, TEXT),
                                                "multi_modal_projector.mm_soft_emb_norm": (WIDTH,)},
    ),
    "Mistral3ForConditionalGeneration": (
        VIT | {"head_dim": 16, "patch_size": 14, "model_type": "pixtral"}, {"image_token_index": 5},
        {"size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}}, pixtral(),
    ),
    "SmolVLMForConditionalGeneration": (
        VIT | {"image_size": 64, "patch_size": 16}, {"image_token_id": 5, "scale_factor": 2},
        {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}},
        siglip("model.vision_model.", 16, 64) | {"model.connector.modality_projection.proj": (TEXT, 4 * WIDTH)},
    ),
    "InternVLForConditionalGeneration": (
        SQUARE, {"image_token_id": 5, "image_seq_length": 4},
        {"size": {"height": SIDE, "width": SIDE}, "crop_to_patches": True, "max_patches": 4}, internvl(),
    ),
    "MiniCPMV": (
        SQUARE | {"image_size": 112}, {"version": 2.6, "query_num": 4, "text_config": {"hidden_size": 128}},
        {"max_slice_nums": 4, "scale_resolution": 56}, resampler(),
    ),
    "MiniCPMV4_6ForConditionalGeneration": (
        SQUARE | {"image_size": 112}, {"image_token_id": 5, "insert_layer_id": 0},
        {"max_slice_nums": 4, "scale_resolution": 56}, minicpm(),
    ),
    "LlavaForConditionalGeneration": (
        SQUARE | {"model_type": "clip_vision_model"}, {"image_token_index": 5},
        {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
        siglip("vision_tower.vision_model.", clip=True) | PROJECTOR,
    ),
    "LlavaNextForConditionalGeneration": (
        SQUARE | {"model_type": "siglip_vision_model"},
        {"image_token_index": 5, "vision_feature_layer": [-2, -1], "vision_feature_select_strategy": "full"},
        {"size": {"height": SIDE, "width": SIDE}, "crop_size": {"height": SIDE}, "image_grid_pinpoints": PIECES},
        siglip("vision_tower.vision_model.") | PROJECTOR
        | {"multi_modal_projector.linear_1": (TEXT, 2 * WIDTH), "=image_newline": (TEXT,)},
    ),
}  # fmt: skip


TOWERS["LightOnOcrForConditionalGeneration"] = (
    VIT | {"head_dim": 16, "patch_size": 14, "model_type": "pixtral"}, {"image_token_id": 5},
    {"size": {"longest_edge": 112}, "patch_size": 28},
    {
        name.replace("vision_tower.", "model.vision_encoder.").replace("multi_modal_projector.",
            "model.vision_projection."): shape
        for name, shape in pixtral().items()
    },
)  # fmt: skip


@pytest.mark.parametrize("name", TOWERS)
def test_a_folder_is_known_to_have_its_tower(name: str) -> None:
    assert has_tensors_of_tower(each.removeprefix("=") for each in TOWERS[name][3])


class RandomTensors(TowerTensors):
    """Random tensors of these shapes; a name with = in front is a tensor's own, others have a weight and a bias."""

    def __init__(self, backend: Backend, shapes: Mapping[str, Any]) -> None:
        self.shapes = {}
        for name, shape in shapes.items():
            if name.startswith("="):
                self.shapes[name[1:]] = shape
            else:
                self.shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        super().__init__(backend, {}, "a test", "F32")

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def array(self, name: str) -> FloatArray:
        if name not in self.shapes:
            raise CheckpointError(name)
        shape = self.shapes[name]
        if shape == ():  # of a range
            return np.array([-0.7 if name.endswith("min") else 0.9], np.float32)
        values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
        return values * np.float32(0.3) if len(shape) < 2 else values / np.sqrt(np.float32(np.prod(shape[1:])))

    def storage_of(self, name: str) -> str:
        return "F32"

    def layer(self, front: str, names: Mapping[str, str], plus: Mapping[str, float] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, module in names.items():
            weight = f"{front}{module}.weight"
            found[key] = self.vector(weight) if len(self.shapes[weight]) == 1 else self.matrix(weight)
            if f"{front}{module}.bias" in self:
                found[f"{key}_bias"] = self.vector(f"{front}{module}.bias")
        return found

    def matrix(self, name: str) -> Any:
        values = self.array(name)
        return self.of_array(values.reshape(len(values), -1))


def described(name: str) -> PictureConfig:
    vision, fields, processor, _ = TOWERS[name]
    raw = {"architectures": [name], "vision_config": vision, "text_config": CHATTER, **fields}
    return PictureConfig(Path("config.json"), raw, processor, {"tokens": {"<unk>": 5}})


def made(name: str) -> Any:
    format = family_of_class(name)
    assert format is not None
    return format.make(described(name))


def loaded(name: str, backend: Backend) -> tuple[Any, Tower]:
    family = made(name)
    tower = Tower(backend, RandomTensors(backend, TOWERS[name][3]), family.form.heads, family.form.head_dim)
    family.load(tower)
    return family, tower


def pictures() -> Iterator[Any]:
    rng = np.random.default_rng(3)
    for size in ((40, 90), (70, 60), (9, 9)):
        yield images.fromarray(rng.integers(0, 256, (*size, 3)).astype(np.uint8))


@pytest.mark.parametrize("name", TOWERS)
def test_native_rows_are_those_of_numpy(name: str) -> None:
    native = pytest.importorskip("homenode.compute.native")
    (family, tower), (_, plain) = loaded(name, native.NativeBackend([-1])), loaded(name, ReferenceBackend())
    first: dict[int, FloatArray] = {}
    for number, picture in [*enumerate(pictures()), *enumerate(pictures())]:
        prepared = family.prepare(picture, True)
        found = family.encode(tower, prepared)
        assert np.isfinite(found.rows).all()
        if number in first:  # whatever was encoded before
            assert np.array_equal(found.rows, first[number])
            continue
        first[number] = found.rows
        wanted = family.encode(plain, prepared)
        np.testing.assert_allclose(found.rows, wanted.rows, atol=2e-4 * np.abs(wanted.rows).max())
        written = family.written(prepared.layout, lambda token: f"<{token}>", 0)
        assert written.count("<5>") == len(found.rows) and found.grid in ((0, 0), family_grid(family, prepared))


def family_grid(family: Any, prepared: Any) -> tuple[int, int]:
    grid: tuple[int, int] = family.grid(prepared.layout) if hasattr(family, "grid") else (0, 0)
    return grid


def test_several_pictures_are_squares_with_a_row_for_their_end() -> None:
    family, tower = loaded("LlavaOnevisionForConditionalGeneration", ReferenceBackend())
    for picture in pictures():
        prepared = family.prepare(picture, False)
        rows = family.encode(tower, prepared).rows
        assert len(rows) == (SIDE // 14) ** 2 + 1
        assert family.written(prepared.layout, lambda token: f"<{token}>", 0) == "<5>" * len(rows)


def test_every_class_has_its_family() -> None:
    for classes in CLASSES.values():
        assert all(family_of_class(name) is not None for name in classes)
    assert family_of_class("LlamaForCausalLM") is None
