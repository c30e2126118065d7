"""`homenode chat`: a conversation in the terminal, the answer appearing as it is made."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.equivalents import EquivalentsCommand
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import NUMA_SETTINGS, with_some_settings
from homenode.cli.generation.conversation import Messages, TerminalConversation
from homenode.cli.generation.sampling_flags import with_sampling_flags
from homenode.cli.output.engine_notes import tell_refused_calls, tell_unused_sampling, tell_unused_settings
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import ERR, OUT, plain_errors, print_note, print_piece, show_controls
from homenode.cli.output.word_wrap import WordWrap
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.logs.setup import hold_log
from homenode.model.tokenizer.config import TextConfig
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.engine.api.completion import Completion
    from homenode.engine.api.llm import LLM
    from homenode.sampling import SamplingParams

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
_YOU = "you "
_MODEL = "homenode "
_ENDS = {"length": "cut by --max-tokens or the end of the context", "abort": "stopped"}


@click.command(cls=EquivalentsCommand)
@click.argument("model", required=False)
@click.option("--system", help="System message that opens the conversation.")
@with_sampling_flags(
    "answer", "0 takes the likeliest token every time. Left out: what the model's generation_config.json says, else 1."
)
@with_some_settings(EngineConfig, *_SETTINGS)
@with_some_settings(TextConfig, "tokenizer", "chat_template", "chat_template_timeout")
@with_command_log
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
    """Talk to MODEL. Ctrl-C stops an answer, Ctrl-D or /exit ends; /help lists the other commands.

    Without a terminal each line of standard input is a question, and standard output has the answers alone.
    """
    from homenode.cli.models.announcement import announce_fetch
    from homenode.engine.model_path.locate import locate_model
    from homenode.engine.plan.model_notes import remarks_on_settings

    with plain_errors():
        config = EngineConfig.of(model, {"max_num_seqs": 1, **settings})
        tell_unused_settings(config)
        tell_refused_calls()
        tell_unused_sampling(temperature)
        config = locate_model(config, announce_fetch(config))
        path, text_config = Path(str(config.model.path)), TextConfig(tokenizer, chat_template, chat_template_timeout)
        text_config.check_links(config.model.links)
        trial = text_config.begin_trial(path)
        from homenode.engine.api.llm import LLM  # takes a while, in which the trial goes on
        from homenode.sampling import SamplingParams

        text = text_config.load(path, trial)
        if not text.has_chat_template:
            raise UserError(
                "this model has no chat template; give one with --chat-template, or use `homenode generate`"
            )
        for remark in remarks_on_settings(config):
            print_note(remark)
        with loading_progress(print_note) as update:
            llm = LLM(config=config, tokenizer=text, progress=update)
        with llm:
            params = SamplingParams(
                max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=list(stop)
            )
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(errors="replace")  # what is no UTF-8 is asked as far as it is
            _print_aside(_banner(llm))
            _talk(llm, params, TerminalConversation(system or ""))


def _banner(llm: LLM) -> str:
    ready = llm.ready
    return f"{ready.model}, context of {format_count(ready.max_model_len, 'token')}; /help lists commands, Ctrl-D ends"


def _print_aside(text: str, style: str = "dim") -> None:
    """Something that is no answer: on standard error, wrapped where that is a terminal."""
    ERR.print(show_controls(text), style=style, markup=False, highlight=False, soft_wrap=not ERR.is_terminal)


def _talk(llm: LLM, params: SamplingParams, conversation: TerminalConversation) -> None:
    while not conversation.is_over and (line := _ask()) is not None:
        text = line.strip()
        if not text:
            continue
        if (reply := conversation.obey(text)) is not None:
            if reply:
                _print_aside(reply)
            continue
        try:
            conversation.answered(_answer(llm, params, conversation.ask(text)))
        except UserError as error:
            if not sys.stdin.isatty():
                raise
            conversation.take_back()
            again = "; /reset begins a new conversation" if conversation.messages else ""
            _print_aside(f"{error.message}{again}", "red")


def _ask() -> str | None:
    """The next line; None at the end. On a terminal it is asked for and can be edited, and Ctrl-C empties it."""
    terminal = sys.stdin.isatty()
    if terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  # `input` edits lines by it
    while True:
        try:
            return input(_prompt() if terminal else "")
        except KeyboardInterrupt:
            if not terminal:
                raise
            _print_aside("\n/exit or Ctrl-D ends")
        except EOFError:
            if terminal:
                ERR.print()
            return None


def _prompt() -> str:
    """Return what stands before a question; where the answers go to a file it is no part of them."""
    if not OUT.is_terminal:
        ERR.print("you ", style="bold cyan", end="")
        return ""
    return f"\001\033[1;36m\002{_YOU}\001\033[0m\002" if OUT.color_system else _YOU


def _answer(llm: LLM, params: SamplingParams, messages: Messages) -> str:
    """Print the answer while it comes and return what came; Ctrl-C cuts it short. Its figures go to standard error."""
    with closing(llm.stream_chat(messages, params)) as stream, hold_log():
        with suppress(KeyboardInterrupt):
            (_print_wrapped if OUT.is_terminal else _print_plain)(stream)
        OUT.print()
        found = stream.completion
    _print_aside(_stats_line(found))
    return found.text


def _print_plain(pieces: Iterable[str]) -> None:
    for piece in pieces:
        print_piece(piece)


def _print_wrapped(pieces: Iterable[str]) -> None:
    OUT.print(f"[bold green]{_MODEL}[/]", end="")
    wrap = WordWrap(len(_MODEL))
    try:
        for piece in pieces:
            print_piece(wrap.feed(show_controls(piece), OUT.width))
    finally:
        print_piece(wrap.end(OUT.width))


def _stats_line(found: Completion) -> str:
    """Return how long the answer is and how fast it came."""
    count, timings = len(found.token_ids), found.timings
    figures = [format_count(count, "token")]
    if timings.tokens_per_second is not None:
        speed = timings.tokens_per_second
        figures.append(f"{speed:.{0 if speed >= 100 else 1}f} tokens/s")
    if timings.time_to_first_token_s is not None:
        figures.append(f"the first after {timings.time_to_first_token_s:.2g} s")
    if found.finish_reason in _ENDS:
        figures.append(_ENDS[found.finish_reason])
    return ", ".join(figures)
