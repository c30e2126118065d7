"""`homenode`: one command a file; a command's module is imported only when it is called, so `homenode --help` answers
at once."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from homenode import __version__
from homenode.cli.flags.suggestions import SuggestingGroup
from homenode.cli.init_process import leave_first_process
from homenode.cli.output.report import COMMAND_WORDS, json_usage_errors, plain_errors
from homenode.cli.output.text_encoding import use_utf8
from homenode.host.process_limits import ensure_thread_stacks, require_data_limit
from homenode.logs.stream import drain_standard_error, open_standard_streams
from homenode.start_phases import mark_phase

_COMMANDS = {
    "serve": ("homenode.cli.server.serve:serve", "Serve a model over HTTP with the OpenAI API."),
    "proxy": ("homenode.cli.server.proxy:proxy", "Put one address in front of prefill and decode servers."),
    "run-batch": ("homenode.cli.server.run_batch:run_batch", "Answer a file of requests, without a server."),
    "generate": ("homenode.cli.generation.generate:generate", "Continue one prompt and print the result."),
    "chat": ("homenode.cli.generation.chat:chat", "Talk to a model in the terminal."),
    "render": ("homenode.cli.generation.render:render", "Print what a model sees of a conversation, text and tokens."),
    "parse": ("homenode.cli.generation.parse:parse", "Print the message that a model's text is understood as."),
    "models": ("homenode.cli.models.group:models", "List the models in the Hub cache, remove them, say which fit."),
    "cache": ("homenode.cli.cache.group:cache", "List, verify, prune and remove KV blocks that are kept on disk."),
    "host": (
        "homenode.cli.placement.host:host",
        "Show this machine: sockets, NUMA nodes, cores, devices, what is allowed.",
    ),
    "plan": ("homenode.cli.placement.plan:plan", "Plan which worker runs on which CPUs and memory, and say why."),
    "simulate": (
        "homenode.cli.placement.simulate:simulate",
        "What a deployment would reach: recorded hosts, a model's figures, a workload.",
    ),
    "run": ("homenode.cli.placement.run:run", "Run any program bound by a plan, or to CPUs and memory nodes."),
    "bind": ("homenode.cli.placement.bind:bind", "Bind a running process by a plan, or to CPUs and memory nodes."),
    "verify": (
        "homenode.cli.placement.verify:verify",
        "Read back from the kernel whether a process is where it should be.",
    ),
    "doctor": (
        "homenode.cli.placement.doctor:doctor",
        "What about this machine is in the way of speed, and what to do about it.",
    ),
    "keys": ("homenode.cli.keys.group:keys", "Make and show keys for connections between hosts (--peer-keys)."),
    "bench": ("homenode.cli.benchmarks.bench:bench", "Measure how fast things run here."),
}


class _LazyGroup(SuggestingGroup):
    """Knows its commands by name and one line; loads their code on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[COMMAND_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with json_usage_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="homenode")
def cli() -> None:
    """LLM serving for the machines people really have.

    MODEL is a Hugging Face folder, a GGUF file, a Hub id such as Qwen/Qwen3-0.6B, or nothing for the built-in model.
    """


@contextmanager
def _early_engine(arguments: list[str]) -> Iterator[None]:
    """Within it the process of an engine that these arguments will need runs already, until the command takes it."""
    if arguments[:1] != ["serve"]:  # nothing of an engine is imported for other commands
        yield
        return
    from homenode.engine.connection.early_start import end_early_engine, needs_engine, start_engine_early
    from homenode.server.http.descriptors import raise_descriptor_limit

    def leave(number: int, frame: object) -> NoReturn:
        """End in order, before anything is served. An exception would pass through whatever is being imported, and C
        code makes another one of it, as NumPy's does, or none.
        """
        end_early_engine()
        drain_standard_error()
        os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)  # until `serve` itself listens to them
    if needs_engine(arguments):
        raise_descriptor_limit()  # the engine's process has the limit of the one that starts it
        start_engine_early()
    try:
        yield
    finally:
        end_early_engine()


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the `homenode` command."""
    mark_phase("interpreter")
    if arguments is None:
        use_utf8(sys.argv[1:])
        if sys.argv[1:2] in (["serve"], ["proxy"]):
            leave_first_process()
    open_standard_streams()
    ensure_thread_stacks()
    with plain_errors():
        try:
            if arguments is None:
                require_data_limit(sys.argv[1:2])
            with _early_engine(sys.argv[1:] if arguments is None else []):
                return cli(args=arguments, prog_name="homenode")
        finally:
            sys.stdout.flush()  # here a fault can be told, and not at the interpreter's end


if __name__ == "__main__":
    sys.exit(main())
