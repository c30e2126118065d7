"""Write the tables of docs/models.md from the architectures there are and the tests that compare them:
`python -m tools.models_table` (a test holds the page up to date).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.checkpoint.wrappers import ANY_TEXT, BY_VERSION
from tests.checkpoints import TOYS
from tools.model_lists import tables

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
_WRITTEN = "<!-- {}: written by tools/models_table.py -->", "<!-- end of {} -->"
_BITS = {"Q4_K_M": 4.85, "Q8_0": 8.5}  # of a weight, on average
# By architecture: sizes that people run, as (name, billions of weights).
SIZES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "aria": (("Aria 25B-A4B", 25.3),),
    "bert": (("all-MiniLM-L6", 0.023), ("bge-base", 0.11), ("bge-m3", 0.57)),
    "bailing_moe_v2": (("Ling, Ring mini 2.0 16B-A1.4B", 16.3), ("flash 2.0 103B-A6B", 103)),
    "bamba": (("Bamba 9B", 9.8),),
    "bloom": (("BLOOM 560M", 0.56), ("7B1", 7.1), ("176B", 176)),
    "cohere": (("Aya 23 8B", 8.0), ("Command R", 35), ("Command R+", 104)),
    "cohere2": (("Command R7B", 8.0), ("Command A", 111)),
    "kimi_linear": (("Kimi Linear 48B-A3B", 49.1),),
    "mpnet": (("all-mpnet-base", 0.11),),
    "opt": (("OPT 125M", 0.13), ("6.7B", 6.7), ("66B", 65.7)),
    "longcat_flash": (("LongCat Flash 560B-A27B", 562),),
    "cohere2_moe": (("North Mini Code 30B-A3B", 30.0),),
    "codegen": (("CodeGen 350M", 0.36), ("2B", 2.8), ("16B", 16.1)),
    "dbrx": (("DBRX 132B-A36B", 132),),
    "persimmon": (("Persimmon 8B", 9.4),),
    "deepseek": (("DeepSeek MoE 16B", 16.4),),
    "deepseek_ocr": (("DeepSeek-OCR", 2.9), ("2", 2.9)),
    "deepseek_v2": (("DeepSeek V2 Lite", 15.7), ("V2", 236)),
    "deepseek_v3": (("DeepSeek V3, R1, V3.1", 671), ("Kimi K2, K2.5", 1026)),
    "deepseek_v32": (("DeepSeek V3.2", 671),),
    "deepseek_v4": (("DeepSeek V4 Flash", 284),),
    "embedding_gemma": (("EmbeddingGemma", 0.31),),
    "eurobert": (("EuroBERT 210M", 0.21), ("610M", 0.61), ("2.1B", 2.1)),
    "falcon": (("Falcon RW 1B", 1.3), ("7B", 7.2), ("40B", 41.8), ("180B", 180)),
    "falcon_h1": (("Falcon-H1 0.5B", 0.5), ("1.5B", 1.6), ("7B", 7.6), ("34B", 33.6)),
    "gemma": (("Gemma 2B", 2.5), ("7B", 8.5)),
    "gemma2": (("Gemma 2 2B", 2.6), ("9B", 9.2), ("27B", 27.2)),
    "gemma3": (("Gemma 3 270M", 0.27), ("1B", 1.0), ("4B", 3.9), ("12B", 11.8), ("27B", 27.0)),
    "gemma3n": (("Gemma 3n E2B", 4.5), ("E4B", 6.9)),
    "gemma4": (("Gemma 4 E2B", 5.1), ("E4B", 8.0), ("12B", 12.0), ("26B-A4B", 26.0), ("31B", 31.0)),
    "glm4_moe": (("GLM-4.5-Air, 4.5V, 4.6V", 107), ("GLM-4.5, 4.6, 4.7", 355)),
    "glm4_moe_lite": (("GLM-4.7-Flash", 30),),
    "glm_moe_dsa": (("GLM-5", 744),),
    "gpt2": (("GPT-2", 0.12), ("XL", 1.6)),
    "gpt_bigcode": (("SantaCoder", 1.1), ("StarCoder 3B", 3.0), ("15B", 15.5)),
    "gpt_neo": (("GPT-Neo 125M", 0.13), ("1.3B", 1.4), ("2.7B", 2.7)),
    "gptj": (("GPT-J 6B", 6.1),),
    "granite_swa": (("Granite Swash 2B", 2.1),),
    "ministral": (("Ministral 8B (2410)", 8.0),),
    "nanochat": (("nanochat d20", 0.56), ("d32", 1.9)),
    "gpt_neox": (("Pythia 160M", 0.16), ("6.9B", 6.9), ("GPT-NeoX 20B", 20.6)),
    "gpt_oss": (("gpt-oss-20b", 20.9), ("gpt-oss-120b", 117)),
    "gte": (("gte-multilingual-base", 0.31), ("gte-large-en 1.5", 0.43)),
    "granite": (("Granite 3.3 2B", 2.5), ("8B", 8.2)),
    "granitemoehybrid": (("Granite 4.0 H-Micro", 3.2), ("H-Tiny", 6.9), ("H-Small", 32.2)),
    "jina_bert": (("jina-embeddings-v2 small", 0.033), ("base", 0.14), ("base-code", 0.16)),
    "jina_embeddings_v3": (("jina-embeddings-v3", 0.57),),
    "lfm2": (("LFM2 350M", 0.35), ("1.2B", 1.2), ("2.6B", 2.6)),
    "lfm3": (("LFM3 1.7B", 1.7),),
    "lfm2_moe": (("LFM2 8B-A1B", 8.3),),
    "llama": (("SmolLM2 135M", 0.135), ("Llama 3.2 1B", 1.2), ("3B", 3.2), ("3.1 8B", 8.0), ("3.3 70B", 70.6)),
    "minicpm": (("MiniCPM4 0.5B", 0.43), ("MiniCPM4.1 8B", 8.2)),
    "minicpm3": (("MiniCPM3 4B", 4.1),),
    "mamba2": (("Mamba 2 2.7B", 2.8), ("Mamba-Codestral 7B", 7.3)),
    "minimax_m2": (("MiniMax-M2, M2.1, M2.5", 229),),
    "minimax_m3": (("MiniMax-M3", 428),),
    "mistral": (("Mistral 7B", 7.2), ("Nemo", 12.2), ("Small 3.1, 3.2", 23.6)),
    "mistral4": (("Mistral 4", 119),),
    "mixtral": (("Mixtral 8x7B", 46.7), ("8x22B", 141)),
    "modernbert": (("ModernBERT base", 0.15), ("large", 0.4)),
    "mpt": (("MPT 7B", 6.6), ("30B", 30)),
    "nemotron": (("Minitron 4B", 4.2), ("8B", 8.3), ("Nemotron 4 340B", 341)),
    "muse_glimmer": (("Muse Glimmer 30B", 30),),
    "nomic_bert": (("nomic-embed-text 1.5", 0.14), ("2 MoE", 0.48)),
    "nemotron_h": (
        ("Nemotron-H 8B", 8.1),
        ("Nemotron Nano 2 9B", 8.9),
        ("Nemotron 3 Nano 30B-A3B", 31.6),
        ("Super", 120),
    ),
    "olmo2": (("OLMo 2 1B", 1.5), ("7B", 7.3), ("13B", 13.7), ("32B", 32.2)),
    "phi": (("Phi 1.5", 1.4), ("Phi 2", 2.8)),
    "ernie4_5": (("ERNIE 4.5 0.3B", 0.36),),
    "ernie4_5_moe": (("ERNIE 4.5 21B-A3B", 21.8), ("300B-A47B", 300)),
    "afmoe": (("Trinity Nano 6B-A1B", 6.1), ("Mini 26B-A3B", 26.0)),
    "cwm": (("CWM 32B", 32.6),),
    "helium": (("Helium 1 2B", 2.0),),
    "hy_v3": (("Hy3 preview 295B-A21B", 295),),
    "hyperclovax": (("HyperCLOVA X SEED Think 14B", 14.7),),
    "jais2": (("Jais 2 8B", 8.1), ("70B", 70)),
    "olmo_hybrid": (("OLMo Hybrid 7B", 7.5),),
    "flex_olmo": (("FlexOlmo 7x7B", 33.3),),
    "laguna": (("Laguna XS.2 33B-A3B", 33.4), ("S.2 118B-A8B", 118), ("M.1 230B-A10B", 230)),
    "mimo_v2_flash": (("MiMo-V2-Flash 309B-A15B", 309),),
    "mellum": (("Mellum 2 12B-A2.5B", 12.0),),
    "solar_open": (("Solar Open 102B-A12B", 102),),
    "vaultgemma": (("VaultGemma 1B", 1.0),),
    "youtu": (("Youtu-LLM 2B", 2.0),),
    "apertus": (("Apertus 8B", 8.1), ("70B", 70.6)),
    "arcee": (("AFM 4.5B", 4.6),),
    "dots1": (("dots.llm1", 143),),
    "exaone": (("EXAONE 3.5 2.4B", 2.4), ("7.8B", 7.8), ("32B", 32.0)),
    "internlm2": (("InternLM 2.5 1.8B", 1.9), ("7B", 7.7), ("20B", 19.9)),
    "internlm3": (("InternLM 3 8B", 8.8),),
    "olmo": (("OLMo 1B", 1.2), ("7B", 6.9)),
    "exaone4": (("EXAONE 4.0 1.2B", 1.3), ("32B", 32.0)),
    "exaone_moe": (("K-EXAONE 236B-A23B", 236),),
    "glm": (("GLM-4 9B chat", 9.4),),
    "glm4": (("GLM-4 9B (0414), Z1 9B", 9.4), ("32B", 32.6)),
    "granitemoe": (("Granite 3.1 1B-A400M", 1.3), ("3B-A800M", 3.3)),
    "granitemoeshared": (("Granite 3 MoE with a shared MLP", 7.0),),
    "hunyuan_v1_dense": (("Hunyuan 0.5B", 0.54), ("1.8B", 1.8), ("4B", 4.0), ("7B", 7.5)),
    "hunyuan_v1_moe": (("Hunyuan A13B", 80.4),),
    "llama4": (("Llama 4 Scout 17B-16E", 108), ("Maverick 17B-128E", 401)),
    "ministral3": (("Ministral 3 3B", 3.4), ("8B", 8.5), ("14B", 13.5)),
    "olmo3": (("OLMo 3 7B", 7.3), ("32B", 32.2)),
    "olmoe": (("OLMoE 1B-7B", 6.9),),
    "seed_oss": (("Seed-OSS 36B", 36.2),),
    "smollm3": (("SmolLM3 3B", 3.1),),
    "phi3": (("Phi 3.5 mini", 3.8), ("Phi 4", 14.7)),
    "phimoe": (("Phi 3.5 MoE", 41.9),),
    "qwen2": (("Qwen 2.5 0.5B", 0.5), ("7B", 7.6), ("32B", 32.8), ("72B", 72.7), ("2.5 VL 7B", 8.3)),
    "qwen2_moe": (("Qwen 1.5 MoE-A2.7B", 14.3), ("Qwen 2 57B-A14B", 57.4)),
    "qwen3": (("Qwen 3 0.6B", 0.75), ("4B", 4.0), ("8B", 8.2), ("14B", 14.8), ("32B", 32.8), ("VL 8B", 8.8)),
    "qwen3_5": (("Qwen 3.5 0.8B", 0.8), ("4B", 4.2), ("9B", 9.0), ("27B (3.5 to 3.8)", 27)),
    "qwen3_5_moe": (("Qwen 3.5 and 3.6 35B-A3B", 35), ("122B-A10B", 122), ("397B-A17B", 397)),
    "qwen3_moe": (("Qwen 3 30B-A3B, VL 30B-A3B", 30.5), ("235B-A22B", 235), ("Coder 480B-A35B", 480)),
    "qwen3_next": (("Qwen3-Next 80B-A3B", 80),),
    "stablelm": (("StableLM 2 1.6B", 1.6), ("StableLM 3B", 2.8)),
    "starcoder2": (("StarCoder 2 3B", 3.0), ("7B", 7.2), ("15B", 16.0)),
}
# By architecture: what is worth knowing of it.
NOTES: Mapping[str, str] = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), "an indexer chooses the tokens that are attended to"),
    "bert": "DistilBERT, RoBERTa and XLM-RoBERTa, and rerankers, too; makes [vectors](embeddings.md)",
    **dict.fromkeys(
        ("embedding_gemma", "eurobert", "gte", "modernbert", "nomic_bert"), "makes [vectors](embeddings.md)"
    ),
    "jina_embeddings_v3": "the model alone, without adapters; makes [vectors](embeddings.md)",
    "jina_bert": "Jina embeddings 2, and that for code; makes [vectors](embeddings.md)",
    "qwen3": "Qwen3-Embedding and -Reranker, too ([vectors and scores](embeddings.md))",
    "cohere2": "every fourth layer sees the whole context, without rope",
    "deepseek_v3": "DeepSeek V3, R1 and V3.1, Kimi K2; the cache keeps latents",
    "falcon": "RW models, too, which have ALiBi",
    "gemma2": "scores and logits capped, every other layer with a window",
    "gemma3n": "several streams of rows (AltUp)",
    "gemma4": "per-layer embeddings, layers that read the keys and values of others",
    "gpt_neox": "both residual styles; gelu is exact in GGUF files, too",
    "gpt_oss": "MXFP4 stays at 4 bits",
    "granite_swa": "windows and sinks",
    "granite": "Granite 3, the dense ones, with their multipliers",
    "granitemoe": "one GGUF name for both kinds, with and without a shared MLP",
    "hunyuan_v1_dense": "a dynamic rope with `alpha` has a larger theta at every length",
    "llama4": "chunks of 8192 tokens, layers without rope",
    "ministral3": "queries that grow with their position",
    "olmo3": "a window in three of four layers, YaRN in the others only",
    "smollm3": "no rope in every fourth layer",
    "granitemoehybrid": "Mamba 2 beside attention, with experts or an MLP",
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), "short convolutions beside attention"),
    **dict.fromkeys(("bamba", "nemotron_h"), "Mamba 2 beside attention"),
    "falcon_h1": "Mamba 2 and attention in every layer",
    "mamba2": "no attention at all",
    "llama": "Llama 2 and 3 and models of their shape, IQuest-Coder V1, XVERSE",
    "hyperclovax": "Granite with norms behind attention and MLP",
    "mistral": "sliding window",
    "mixtral": "GGUF files with stacked experts and older ones with a tensor for each",
    "deepseek_v4": "rows pooled from runs of tokens beside a window, hyper-connections; keeps about 51 KiB of a token",
    "minimax_m3": "an indexer chooses blocks of tokens for each KV head",
    "olmo_hybrid": "gated delta nets beside attention, mostly without a rope; CPUs only",
    "kimi_linear": "delta nets with a decay of each channel beside latent attention without a rope",
    "mpnet": "biases by distance; makes [vectors](embeddings.md)",
    "longcat_flash": "experts that return a row as it is; two layers here for one of its folders",
    "flex_olmo": "OLMo 2 with experts",
    "laguna": "unlike numbers of query heads in layers with and without a window",
    "mimo_v2_flash": "keys wider than values; folders count a window's tokens without the token itself, GGUF files "
    "with it",
    "minicpm": "MiniCPM 1, 2, 4 and 4.1, attending to the whole context",
    "muse_glimmer": "layers with a window have a rope, the others have none; attention with a gate",
    "phi3": (
        "longrope: the factors for long contexts where `--max-model-len` is above the original length, else the others"
    ),
    "phimoe": "experts are weighted by sparsemixer in GGUF files, too",
    "qwen2_moe": "shared expert with its gate, layers with an MLP instead",
    "qwen3_moe": "layers with an MLP instead",
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_moe", "qwen3_next"), "gated delta nets beside attention with a gate; CPUs only"
    ),
}
# Of which no converter writes GGUF files.
FOLDERS_ONLY = frozenset(
    (
        "aria codegen cwm flex_olmo gpt_neo gptj gte helium hyperclovax lfm3 longcat_flash ministral mpnet "
        "nanochat olmo_hybrid opt persimmon vaultgemma"
    ).split()
)
# By architecture: what people ask for that it does not do, besides what the code tells; it is refused by name.
LIMITS: Mapping[str, tuple[str, ...]] = {
    "mamba2": ("`--pd-role`",),
    **dict.fromkeys(("gemma3n", "gemma4"), ("sound",)),
    "gpt_oss": ("other gates than `swiglu_limit` 7",),
    "bert": ("GGUF files of BERT's own rerankers, which lack a layer",),
    "jina_bert": (
        "`feed_forward_type` but geglu",
        "GGUF files for code with gate and up in one",
        "folders of its rerankers",
    ),
    "eurobert": ("heads for scores",),
    "opt": ("OPT 350M, whose norms come behind",),
    "jina_embeddings_v3": ("adapters for tasks",),
    "bloom": ("`apply_residual_connection_post_layernorm`",),
    "mpt": ("models without ALiBi",),
    "stablelm": ("`qk_layernorm`",),
    "laguna": ("caps of the router's logits",),
    "llama4": ("several experts for a token",),
    "olmoe": ("limits of q, k and v in GGUF, which keeps none",),
    "minicpm": ("`sparse_config`",),
    "minimax_m3": ("index heads that are not as many as KV heads",),
    "llama": ("rope scaling but linear, llama3, yarn, and dynamic up to the original context",),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), ("GGUF files with a window within the context",)),
}


def table() -> str:
    """The table as Markdown."""
    lines = [
        (
            "| Hugging Face class | GGUF `general.architecture` | sizes that people run: GiB in Q4_K_M, in Q8_0 | "
            "notes | compared | not supported |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for architecture in sorted(ARCHITECTURES.values(), key=lambda each: each.name):
        name = architecture.name
        cells = (
            architecture.folder.class_name,
            "" if name in FOLDERS_ONLY else ", ".join(architecture.gguf.all_names),
            "; ".join(f"{size}: {_memory(billions)}" for size, billions in SIZES[name]),
            NOTES.get(name, ""),
            ", ".join(_compared(architecture)),
            "; ".join(_not_supported(architecture)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def wrappers() -> str:
    """The classes of models that see or hear, and what their text is, as Markdown."""
    lines = ["| class of the whole | its text |", "|---|---|"]
    for place in sorted(set(ANY_TEXT.values())):
        alike = sorted(name for name, where in ANY_TEXT.items() if where == place)
        lines.append(f"| {', '.join(alike)} | any of the above, by `model_type` in `{place}` |")
    for name, versions in BY_VERSION.items():
        told = ", ".join(f"{version} {ARCHITECTURES[kind].folder.class_name}" for version, kind in versions.items())
        lines.append(f"| {name} | by its `version`: {told} |")
    for architecture in ARCHITECTURES.values():
        if classes := architecture.folder.picture_classes:
            lines.append(f"| {', '.join(classes)} | {architecture.folder.class_name} |")
    return "\n".join(lines)


_BY_FORMULAS = ("bailing_moe_v2", "internlm2", "jina_bert")


def _memory(billions: float) -> str:
    sizes = (billions * 1e9 * bits / 8 / 2**30 for bits in _BITS.values())
    return ", ".join(f"{size:.1f}" if size < 10 else f"{size:.0f}" for size in sizes)


def _compared(architecture: Architecture) -> tuple[str, ...]:
    """What tests compare with transformers: its folder, and its GGUF file, by itself or as the folder's values. Of a
    class that transformers does not have the tests compute the formulas.
    """
    if architecture.name in _BY_FORMULAS:
        return ("folder and GGUF by formulas",)
    kinds = {architecture.name, *architecture.folder.model_types}
    tests = [test for test in _tests() if kinds & test.kinds]
    gguf = architecture.name in TOYS or any(test.has_gguf for test in tests)
    gguf = gguf and architecture.name not in FOLDERS_ONLY
    return tuple(kind for kind, there in (("folder", bool(tests)), ("GGUF", gguf)) if there)


def _not_supported(architecture: Architecture) -> tuple[str, ...]:
    pictures = ("pictures",) if architecture.folder.picture_classes else ()
    return (*pictures, *LIMITS.get(architecture.name, ()))


class _TestFile(NamedTuple):
    """A file of tests. `kinds`: of models that it makes, as config.json may call them or as a file calls them that has
    the figures of a model like it; `has_gguf`: whether it makes GGUF files.
    """

    kinds: frozenset[str]
    has_gguf: bool


@cache
def _tests() -> list[_TestFile]:
    return [_read(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "tests" / "model").glob("*.py"))]


def _read(text: str) -> _TestFile:
    kinds = re.findall(r'(?:(?:Case\(|: \()\s*|gguf_name=)"([^"\n]+)"', text)
    return _TestFile(frozenset(kinds), re.search(r"(check|write)_(stacked_|delta_)?gguf\(", text) is not None)


def page() -> str:
    """The whole page, with the tables as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    for what, written in (("families", table()), ("wrappers", wrappers()), ("lists", tables())):
        begin, end = (mark.format(what) for mark in _WRITTEN)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{written}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
