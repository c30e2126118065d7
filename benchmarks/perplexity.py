"""How well a model predicts a text of the repository, computed as it is served, beside other engines on the same file.

    make real-models
    python -m benchmarks.perplexity [--transformers] [--llama-cpp FOLDER] [--text FILE] [--out docs/perplexity.json]

The text is cut into windows of 512 tokens, and every token but a window's first is predicted from those before it.
`--transformers` computes the file's weights in float32; `--llama-cpp` names the folder with llama.cpp's
`llama-perplexity`, which cuts the same windows and counts the tokens after the middle one of each: homenode's second
halves are those tokens.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, StepArrays, StepLimits
from homenode.kv_types import KV_TYPES
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.tokenizer import load_tokenizer
from homenode.model.weights.load import LoadedModel, load_model

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "real-models"
TEXT = ROOT / "benchmarks" / "perplexity.txt"
WINDOW = 512
_BLOCK = 32
_STEP = 128  # tokens, so that the logits of a large vocabulary have room


def models() -> dict[str, Path]:
    """The files that `make real-models` fetches, by name; of one that comes in parts these are put together once."""
    found = {file.stem: file for file in sorted(MODELS.rglob("*.gguf"))}
    parts = sorted(MODELS.rglob("*.gguf.part*"), key=lambda part: part.name)
    for name in {part.stem for part in parts}:
        whole = MODELS / name
        if not whole.exists():
            temporary = whole.with_suffix(".joining")
            temporary.write_bytes(b"".join(part.read_bytes() for part in parts if part.stem == name))
            temporary.rename(whole)
        found[whole.stem] = whole
    return found


def windows(file: Path, text: str) -> list[list[int]]:
    """The tokens of a text in windows, the last one that is not full left out; the file's BOS, if any, replaces the
    first of each."""
    tokenizer = load_tokenizer(file)
    tokens, bare = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    before = tokens[: len(tokens) - len(bare)]
    starts = range(0, len(tokens) - WINDOW + 1, WINDOW)
    return [before + tokens[start + len(before) : start + WINDOW] for start in starts]


def logprobs(model: LoadedModel, backend: Any, tokens: list[int], kv_dtype: str) -> FloatArray:
    """Natural log-probabilities of tokens 1 and later, each given those before it."""
    blocks = -(-len(tokens) // _BLOCK)
    cache = backend.kv_cache(model.kv_geometry(_BLOCK, kv_dtype), blocks)
    program = backend.compile(model.forward(cache), StepLimits(_STEP, 1, _STEP, blocks))
    found = []
    for first in range(0, len(tokens) - 1, _STEP):
        end = min(first + _STEP, len(tokens) - 1)
        rows = np.arange(end - first, dtype=np.int32)
        logits = program.run(
            StepArrays(
                np.array(tokens[first:end], np.int32), rows + np.int32(first), np.array([0, end - first], np.int32),
                np.array([end], np.int32),
                np.arange(blocks, dtype=np.int32)[None, :], rows,
            )
        )  # fmt: skip
        found.append(backend.score(logits, rows, np.array(tokens[first + 1 : end + 1], np.int32), 1).logprobs)
    return np.concatenate(found)


def perplexity(found: Iterator[FloatArray] | list[FloatArray], second_half: bool = False) -> float:
    """Of windows' log-probabilities."""
    taken = [each[WINDOW // 2 :] if second_half else each for each in found]
    return float(np.exp(-np.concatenate(taken).astype(np.float64).mean()))


def by_transformers(file: Path, cut: list[list[int]]) -> list[FloatArray]:
    """The same log-probabilities by transformers, which decodes the file's weights to float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found = []
    for tokens in cut:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, :-1]
            rows = torch.log_softmax(logits.double(), dim=-1)
        found.append(rows[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].float().numpy())
    return found


def by_llama_cpp(folder: Path, file: Path, text: Path) -> float:
    """What `llama-perplexity` says of the same text."""
    command = [folder / "llama-perplexity", "-m", file, "-f", text, "-c", WINDOW, "-b", WINDOW]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    told = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if told is None:
        raise click.ClickException(f"llama-perplexity printed no estimate: {done.stderr[-400:]}")
    return float(told[1])


@dataclass(frozen=True)
class Quality:
    """A model's perplexity over the text. `second_half`: of the tokens that llama.cpp counts."""

    model: str
    engine: str
    keys_and_values: str
    whole: float | None
    second_half: float


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--transformers", "beside", is_flag=True, help="Compute by transformers, too.")
@click.option("--llama-cpp", type=click.Path(exists=True, path_type=Path), help="The folder with llama-perplexity.")
@click.option("--text", type=click.Path(exists=True, path_type=Path), default=TEXT, help="Another text, in UTF-8.")
@click.option("--model", "chosen", multiple=True, help="One of the models; repeatable. All of them unless given.")
@click.option("--out", type=click.Path(path_type=Path), help="Write all figures into this JSON file.")
def main(beside: bool, llama_cpp: Path | None, text: Path, chosen: tuple[str, ...], out: Path | None) -> None:
    """Measure and print."""
    if not (known := models()):
        raise click.ClickException(f"no models in {MODELS}: run make real-models")
    found = []
    for name, file in known.items():
        if chosen and name not in chosen:
            continue
        cut, backend = (
            windows(file, text.read_text(encoding="utf-8")),
            NativeBackend([-1] * len(os.sched_getaffinity(0))),
        )
        model = load_model(open_checkpoint(file), backend)
        for kv_dtype in KV_TYPES:
            rows = [logprobs(model, backend, tokens, kv_dtype) for tokens in cut]
            found.append(Quality(name, "homenode", kv_dtype, perplexity(rows), perplexity(rows, True)))
        if beside:
            rows = by_transformers(file, cut)
            found.append(Quality(name, "transformers", "f32", perplexity(rows), perplexity(rows, True)))
        if llama_cpp is not None:
            found.append(Quality(name, "llama.cpp", "f16", None, by_llama_cpp(llama_cpp, file, text)))
    table = Table("model", "engine", "keys and values", "perplexity", "of second halves")
    for each in found:
        whole = "" if each.whole is None else f"{each.whole:.3f}"
        table.add_row(each.model, each.engine, each.keys_and_values, whole, f"{each.second_half:.3f}")
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
