"""How fast vectors of texts are made: homenode beside transformers with torch, and OpenVINO.

    python -m benchmarks.embeddings [--rounds 20] [--threads N] [--texts 32] [--tokens 200] [--precision bf16,int8,f32]
                                    [--peer transformers] [--peer openvino=VENV] [--json FILE]

The model has the shape of bge-base (BERT: 12 layers of 768, 12 heads, inner 3072; the row of the first token) and
random weights in float32, and is written to a temporary folder. Every engine is a program that stays loaded; they take
turns, in another order each round, so that whatever changes on the machine changes for all. A peer is run by the Python
of VENV (or of this environment) at bf16 and f32. For each peer the median over the rounds of its seconds over ours,
with a 95 % interval by order statistics: by the clock, and by CPU time, which other programs on the machine change
less. Vectors are compared with those of the last engine that runs in float32 (cosine).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.others import Others, process_seconds
from benchmarks.standing import CommandFailed, Standing
from homenode.bench.runner import Interval, keep_record

_PROGRAM = Path(__file__).resolve().parent / "programs" / "run_embeddings.py"
_PEERS, _PEER_PRECISIONS = ("transformers", "openvino"), ("bf16", "f32")
_WORDS, _HIDDEN, _INNER, _LAYERS, _HEADS, _POSITIONS = 30522, 768, 3072, 12, 12, 512


def write_model(folder: Path) -> None:
    """The model as bge-base is published, with random weights."""
    config = {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": _HIDDEN, "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "vocab_size": _WORDS, "hidden_act": "gelu",
        "max_position_embeddings": _POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    }  # fmt: skip
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"))}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": words}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in
               (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))]  # fmt: skip
    (folder / "1_Pooling").mkdir()
    for name, value in {
        "config.json": config,
        "tokenizer.json": {"version": "1.0", "added_tokens": [], "model": model | {"max_input_chars_per_word": 100}},
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": _HIDDEN, "pooling_mode_cls_token": True},
    }.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    _write_tensors(folder / "model.safetensors")


def _write_tensors(file: Path) -> None:
    shapes = dict(_shapes())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(7)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = random.standard_normal(shape, np.float32) * np.float32(0.02 if len(shape) == 1 else 0.04)
            opened.write((values + np.float32(1) if name.endswith("LayerNorm.weight") else values).tobytes())


def _shapes() -> list[tuple[str, list[int]]]:
    tables = {"word": _WORDS, "position": _POSITIONS, "token_type": 2}
    found = [(f"embeddings.{name}_embeddings.weight", [rows, _HIDDEN]) for name, rows in tables.items()]
    matrices = {
        **{f"attention.self.{name}": (_HIDDEN, _HIDDEN) for name in ("query", "key", "value")},
        "attention.output.dense": (_HIDDEN, _HIDDEN),
        "intermediate.dense": (_INNER, _HIDDEN),
        "output.dense": (_HIDDEN, _INNER),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(_LAYERS):
        front = f"encoder.layer.{layer}."
        norms += [f"{front}{part}.output.LayerNorm".replace("..", ".") for part in ("attention", "")]
        for name, shape in matrices.items():
            found += [(f"{front}{name}.weight", list(shape)), (f"{front}{name}.bias", [shape[0]])]
    return found + [(f"{norm}.{part}", [_HIDDEN]) for norm in norms for part in ("weight", "bias")]


@dataclass
class Side:
    """An engine at a precision. `seconds` and `cpu`: of each round; `others`: the share of the CPUs that other programs
    used meanwhile; `vectors`: of the first texts.
    """

    engine: str
    precision: str
    argv: tuple[str, ...]
    version: str = ""
    vectors: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"{self.engine}, {self.precision}"


def started(sides: Sequence[Side], standing: Standing, say: Callable[[str], None]) -> list[Side]:
    """Those that load; what does not is named."""
    found = []
    for side in sides:
        say(f"{side.name}: loading")
        try:
            standing.ready(side.argv, {})
            first = json.loads(standing.ask(side.argv, "vectors"))
        except CommandFailed as error:
            say(f"{side.name}: not measured: {str(error).splitlines()[-1]}")
            continue
        side.version, side.vectors = first["version"], first["vectors"]
        found.append(side)
    return found


def run(sides: Sequence[Side], rounds: int, standing: Standing, say: Callable[[str], None]) -> None:
    """Measure all in turns."""
    for number in range(rounds):
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            process = standing.ready(side.argv, {})
            before = process_seconds(process)
            with Others(process) as others:
                seconds = json.loads(standing.ask(side.argv, number))["seconds"]
            side.seconds.append(seconds)
            side.cpu.append(process_seconds(process) - before)
            side.others.append(others.share)
        say(f"round {number + 1} of {rounds}: " + "; ".join(f"{side.name} {side.seconds[-1]:.2f} s" for side in sides))


def summary(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Each side's median, and each peer's over ours at every precision: above 1 we are faster."""
    ours = [side for side in sides if side.engine == "homenode"]
    exact = next((side for side in reversed(sides) if side.precision == "f32"), sides[0])
    lines: list[dict[str, Any]] = []
    for side in sides:
        line: dict[str, Any] = {"engine": side.engine, "precision": side.precision, "version": side.version}
        line |= {
            "seconds": Interval.of(side.seconds),
            "cpu_seconds": Interval.of(side.cpu),
            "others": Interval.of(side.others),
        }
        line["least_cosine"] = float((np.array(side.vectors) * np.array(exact.vectors)).sum(axis=1).min())
        if side.engine != "homenode":
            line["ratios"] = {
                own.precision: {
                    "clock": Interval.of_ratios(side.seconds, own.seconds),
                    "cpu": Interval.of_ratios(side.cpu, [max(mine, 0.01) for mine in own.cpu]),
                }
                for own in ours
            }
        lines.append(line)
    return lines


def _shown(lines: Sequence[dict[str, Any]]) -> str:
    def spread(values: Sequence[float]) -> str:
        return f"{values[0]:.2f} ({values[1]:.2f} to {values[2]:.2f})"

    found = []
    for line in lines:
        found.append(
            f"{line['engine']}, {line['precision']}: {spread(line['seconds'])} s; {line['version']}; cosine "
            f"{line['least_cosine']:.5f}"
        )
        for precision, ratio in line.get("ratios", {}).items():
            found.append(
                f"    homenode in {precision} is faster by {spread(ratio['clock'])}, by CPU time {spread(ratio['cpu'])}"
            )
    return "\n".join(found)


def _sides(given: argparse.Namespace, task: dict[str, Any]) -> list[Side]:
    engines = [("homenode", sys.executable, given.precision.split(","))]
    for peer in given.peer or _PEERS:
        name, _, folder = peer.partition("=")
        if name not in _PEERS:
            raise SystemExit(f"--peer {peer}: give one of {', '.join(_PEERS)}, or NAME=VENV")
        engines.append((name, str(Path(folder) / "bin" / "python") if folder else sys.executable, _PEER_PRECISIONS))
    return [
        Side(name, precision, (python, str(_PROGRAM), name, json.dumps({**task, "precision": precision})))
        for name, python, precisions in engines
        for precision in precisions
    ]


def main() -> None:
    """Prints a table, and progress on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--precision", default="bf16,int8,f32", help="of homenode")
    parser.add_argument("--peer", action="append", metavar="NAME[=VENV]")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    random = np.random.default_rng(3)
    ids = random.integers(1000, _WORDS, (given.texts, given.tokens)).tolist()
    with tempfile.TemporaryDirectory() as folder, Standing() as standing:
        write_model(Path(folder))
        sides = started(_sides(given, {"model": folder, "threads": given.threads, "ids": ids}), standing, say)
        run(sides, given.rounds, standing, say)
    lines = summary(sides)
    print(_shown(lines))
    shape = {"texts": given.texts, "tokens": given.tokens, "threads": given.threads, "rounds": given.rounds}
    keep_record(given.json, {line["engine"]: line["version"] for line in lines}, **shape, sides=lines)


if __name__ == "__main__":
    main()
