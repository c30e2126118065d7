"""`homenode chat`: a conversation in the terminal, the answer appearing as it is made."""

from __future__ import annotations

import time

import click

from homenode.cli.report import ERR, OUT, loading_bar, plain_errors
from homenode.errors import UserError


@click.command()
@click.argument("model", required=False)
@click.option("--system", help="System message that opens the conversation.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0 takes the likeliest token every time.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95, show_default=True, help="Nucleus sampling.")
@click.option("--seed", type=int, help="Makes the answers repeatable.")
@click.option("--threads", type=click.IntRange(1), help="Compute threads. Default: one for each physical core allowed.")
@click.option("--quantize", type=click.Choice(["q8_0", "q4_0"]), help="Quantise float matrices while loading.")
def chat(
    model: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    threads: int | None,
    quantize: str | None,
) -> None:
    """Talk to MODEL. An empty line or Ctrl-D ends the conversation; /new starts another; Ctrl-C stops an answer."""
    from homenode.engine.llm import LLM
    from homenode.engine.request import SamplingParams

    with plain_errors():
        with loading_bar("loading") as update:
            llm = LLM(model, threads=threads, quantize=quantize, progress=update)
        with llm:
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
            _talk(llm, params, [{"role": "system", "content": system}] if system else [])


def _talk(llm: object, params: object, opening: list[dict[str, str]]) -> None:
    messages = list(opening)
    ERR.print("[dim]Ask something. An empty line ends the conversation, /new starts another.[/]")
    while text := _ask():
        if text == "/new":
            messages = list(opening)
            continue
        messages.append({"role": "user", "content": text})
        try:
            messages.append({"role": "assistant", "content": _answer(llm, params, messages)})
        except UserError as error:
            messages.pop()
            ERR.print(f"[red]{error.message}[/]", markup=True, highlight=False)


def _ask() -> str:
    try:
        return OUT.input("[bold cyan]you[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        OUT.print()
        return ""


def _answer(llm: object, params: object, messages: list[dict[str, str]]) -> str:
    """Print the answer while it comes and return what came; Ctrl-C cuts it short."""
    pieces: list[str] = []
    start = time.monotonic()
    OUT.print("[bold green]homenode[/] ", end="")
    stream = llm.stream_chat(messages, params)  # type: ignore[attr-defined]
    try:
        for piece in stream:
            pieces.append(piece)
            OUT.print(piece, end="", markup=False, highlight=False)
    except KeyboardInterrupt:
        stream.close()
    OUT.print(f"\n[dim]{time.monotonic() - start:.1f} s[/]", highlight=False)
    return "".join(pieces)
