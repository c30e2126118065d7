"""`homenode chat`: a conversation in the terminal, the answer appearing as it is made."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.engine_notes import tell_unused_sampling, tell_unused_settings
from homenode.cli.options import NUMA_SETTINGS, with_some_settings
from homenode.cli.report import ERR, OUT, loading_bar, plain_errors, print_note, print_piece, show_controls
from homenode.cli.sampling_flags import with_sampling_flags
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.model.tokenizer.config import TextConfig

if TYPE_CHECKING:
    from homenode.engine.llm import LLM
    from homenode.engine.request import SamplingParams

_SETTINGS = (
    "threads",
    "isa",
    "quantize",
    "dtype",
    "packed_cache",
    "links",
    "max_model_len",
    "kv_cache_dtype",
    *NUMA_SETTINGS,
)
Messages = list[dict[str, str]]


@click.command()
@click.argument("model", required=False)
@click.option("--system", help="System message that opens the conversation.")
@with_sampling_flags(
    "answer", "0 takes the likeliest token every time. Left out: what the model's generation_config.json says, else 1."
)
@with_some_settings(EngineConfig, *_SETTINGS)
@with_some_settings(TextConfig, "tokenizer", "chat_template", "chat_template_timeout")
def chat(
    model: str | None,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    stop: tuple[str, ...],
    tokenizer: str | None,
    chat_template: str | None,
    chat_template_timeout: float,
    **settings: Any,
) -> None:
    """Talk to MODEL. An empty line or Ctrl-D ends the conversation; /new starts another; Ctrl-C stops an answer."""
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.location.located import located
    from homenode.engine.remarks import remarks_on_settings

    with plain_errors():
        config = EngineConfig.of(model, {"max_num_seqs": 1, **settings})
        tell_unused_settings(config)
        tell_unused_sampling(temperature)
        config = located(config, announce_fetch(config))
        path, text_config = Path(str(config.model.path)), TextConfig(tokenizer, chat_template, chat_template_timeout)
        trial = text_config.begin_trial(path)
        from homenode.engine.llm import LLM  # takes a while, in which the trial goes on
        from homenode.engine.request import SamplingParams

        text = text_config.load(path, trial)
        if not text.has_chat_template:
            raise UserError(
                "this model has no chat template; give one with --chat-template, or use `homenode generate`"
            )
        for remark in remarks_on_settings(config):
            print_note(remark)
        with loading_bar("loading") as update:
            llm = LLM(config=config, tokenizer=text, progress=update)
        with llm:
            params = SamplingParams(
                max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=list(stop)
            )
            _talk(llm, params, [{"role": "system", "content": system}] if system else [])


def _talk(llm: LLM, params: SamplingParams, opening: Messages) -> None:
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
            ERR.print(show_controls(error.message), style="red", markup=False, highlight=False)


def _ask() -> str:
    try:
        return OUT.input("[bold cyan]you[/] ").strip()
    except (EOFError, KeyboardInterrupt):
        OUT.print()
        return ""


def _answer(llm: LLM, params: SamplingParams, messages: Messages) -> str:
    """Print the answer while it comes and return what came; Ctrl-C cuts it short."""
    pieces: list[str] = []
    start = time.monotonic()
    with closing(llm.stream_chat(messages, params)) as stream:
        OUT.print("[bold green]homenode[/] ", end="")
        try:
            for piece in stream:
                pieces.append(piece)
                print_piece(piece)
        except KeyboardInterrupt:
            pass
    OUT.print(f"\n[dim]{time.monotonic() - start:.1f} s[/]", highlight=False)
    return "".join(pieces)
