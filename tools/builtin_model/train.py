"""Trains the built-in model on the CPU for a number of minutes.

    python -m tools.builtin_model.train --minutes 50 --out run/

The learning rate follows the clock, so a slower machine sees fewer tokens and still ends cool. `run/state.pt` is
written every few minutes; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed
from tokenizers import Tokenizer
from torch.multiprocessing.spawn import spawn
from transformers import LlamaForCausalLM

from .corpus.conversation import Source
from .evaluate import evaluate, summary
from .model import VOCABULARY, config
from .tokens import END, END_OF_TEXT, Encoder, load_tokenizer, token_id, train_tokenizer

Batch = tuple[torch.Tensor, torch.Tensor]


def batches(encoder: Encoder, seed: int, rows: int, length: int) -> Iterator[Batch]:
    """Ids and weights [rows, length + 1]. Each row is filled with whole conversations, so a row reads like one long
    chat.
    """
    source = Source(seed)
    pool: list[tuple[list[int], list[float]]] = []
    while True:
        ids = torch.zeros(rows, length + 1, dtype=torch.long)
        weights = torch.zeros(rows, length + 1)
        for row in range(rows):
            pool += [encoder.encode(source.conversation()) for _ in range(64 - len(pool))]
            if (
                row % 5 == 0
                # A prompt to be completed stands at the very start, with no chat before it, and so must some of the
                # texts.
            ):
                pool.insert(0, encoder.encode(source.plain()))
            at = 0
            while at <= length and (fitting := _longest(pool, at, length + 1)) is not None:
                row_ids, row_weights = pool.pop(fitting)
                size = min(len(row_ids), length + 1)
                ids[row, at : at + size] = torch.tensor(row_ids[:size])
                weights[row, at : at + size] = torch.tensor(row_weights[:size])
                at += size
        yield ids, weights


def _longest(pool: list[tuple[list[int], list[float]]], used: int, length: int) -> int | None:
    """The oldest conversation for an empty row (cut if it must be), later the longest one that still fits; None when
    none does.
    """
    if used == 0:
        return 0
    sizes = [(len(ids), -place) for place, (ids, _) in enumerate(pool) if used + len(ids) <= length]
    return -max(sizes)[1] if sizes else None


class Loss:
    """Weighted mean cross entropy of the next ids; the body runs compiled, the head only where a weight is."""

    def __init__(self, model: LlamaForCausalLM, compiled: bool) -> None:
        self._body = torch.compile(model.model, dynamic=False) if compiled else model.model
        self._head = model.lm_head

    def __call__(self, batch: Batch) -> torch.Tensor:
        ids, weights = batch
        wanted = weights[:, 1:].flatten()
        places = wanted.nonzero().squeeze(1)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self._body(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            logits = self._head(hidden.flatten(0, 1)[places])
        losses = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].flatten()[places], reduction="none")
        return (losses * wanted[places]).sum() / wanted.sum()


class Optimizers:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms. Muon learns more from each token,
    and tokens are what a CPU lacks.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        matrices = [weight for weight in model.model.layers.parameters() if weight.dim() == 2]
        chosen = {id(weight) for weight in matrices}
        others = [weight for weight in model.parameters() if id(weight) not in chosen]
        self._all = (
            torch.optim.Muon(matrices, lr=1e-3, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        )

    def step(self, rate: float) -> None:
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, object]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def load(self, states: list[dict[str, object]]) -> None:
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


def rate_at(done: float, step: int, peak: float) -> float:
    """Warm-up over 100 steps, constant for the first half of the time (`done`, 0 to 1), then straight down to 2 % of
    `peak`.
    """
    return peak * min(1.0, (step + 1) / 100) * (0.02 + 0.98 * min(1.0, 2 * max(0.0, 1 - done)))


class Run:
    """Everything a training run must remember, and how it is saved."""

    def __init__(self, out: Path, seed: int) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.seed = out, seed
        self.tokenizer = self._tokenizer()
        self.encoder = Encoder(self.tokenizer)
        torch.manual_seed(seed)
        self.model = LlamaForCausalLM(config(token_id(self.tokenizer, END_OF_TEXT), token_id(self.tokenizer, END)))
        self.optimizers = Optimizers(self.model)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        if self._state.exists():
            self._resume()

    @property
    def _state(self) -> Path:
        return self.out / "state.pt"

    def _tokenizer(self) -> Tokenizer:
        path = self.out / "tokenizer.json"
        if not path.exists():
            train_tokenizer(VOCABULARY, self.seed).save(str(path))
        return load_tokenizer(path)

    def _resume(self) -> None:
        state = torch.load(self._state, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizers.load(state["optimizers"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]

    def save(self) -> None:
        """Writes the state beside itself first, so that an interrupted write loses nothing."""
        state: dict[str, object] = {"model": self.model.state_dict(), "optimizers": self.optimizers.state()}
        state |= {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        beside = self._state.with_suffix(".tmp")
        torch.save(state, beside)
        beside.replace(self._state)

    def train(self, minutes: float, peak: float, shape: tuple[int, int], save_every: float, compiled: bool) -> None:
        """Trains until `minutes` of training time are spent, over all resumed parts together."""
        rank = torch.distributed.get_rank()
        # Every worker, and every part of a resumed run, draws its own text.
        stream = batches(self.encoder, self.seed * 1_000_003 + self.step * 16 + rank, *shape)
        loss_of = Loss(self.model, compiled)
        before, start, saved, mean = self.seconds, time.monotonic(), self.seconds, 0.0
        while self.seconds < minutes * 60:
            loss = loss_of(next(stream))
            loss.backward()  # type: ignore[no-untyped-call]
            value, self.seconds = self._average(loss.item(), before + time.monotonic() - start)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizers.step(rate_at(self.seconds / (minutes * 60), self.step, peak))
            self.step, self.tokens = (
                self.step + 1,
                self.tokens + shape[0] * shape[1] * torch.distributed.get_world_size(),
            )
            mean = value if mean == 0 else 0.98 * mean + 0.02 * value
            if rank == 0 and self.step % 50 == 0:
                speed = self.tokens / self.seconds
                print(
                    (
                        f"step {self.step} loss {mean:.3f} {self.tokens / 1e6:.2f}M tokens {speed:.0f}/s "
                        f"{self.seconds / 60:.1f} min"
                    ),
                    flush=True,
                )
            if rank == 0 and self.seconds - saved > save_every * 60:
                self.save()
                saved = self.seconds
        if rank == 0:
            self.save()

    def _average(self, loss: float, seconds: float) -> tuple[float, float]:
        """Averages the gradients over the workers, and with them the loss and the clock, so that all take the same step
        and stop together.
        """
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([loss, seconds])])
        torch.distributed.all_reduce(flat)
        flat /= torch.distributed.get_world_size()
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()
        return float(flat[-2]), float(flat[-1])


def _work(rank: int, chosen: argparse.Namespace, meeting: str) -> None:
    """One worker: one thread, its own text, the same weights as the others."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=chosen.workers)
    run = Run(chosen.out, chosen.seed)
    run.train(chosen.minutes, chosen.rate, (chosen.rows, chosen.length), chosen.save_every, not chosen.no_compile)
    torch.distributed.destroy_process_group()
    if rank == 0:
        print(summary(evaluate(run.model, run.encoder, per_kind=5), worst=200))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=50.0, help="training time in all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--rows", type=int, default=16, help="rows of one worker's batch")
    parser.add_argument("--length", type=int, default=160, help="tokens of a row")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="processes of one thread each; on a busy machine they wait less than two threads do",
    )
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes between saves")
    chosen = parser.parse_args()
    run = Run(chosen.out, chosen.seed)  # Learns the vocabulary once, before the workers need it.
    print(f"{sum(weight.numel() for weight in run.model.parameters()) / 1e6:.2f} million parameters", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (chosen, f"{folder}/meeting"), nprocs=chosen.workers)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
