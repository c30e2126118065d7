"""The options of the commands that draw tokens, with one name and one meaning for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from homenode.cli.flags.token_counts import TokenCount
from homenode.sampling import DEFAULT_TOKENS


def with_sampling_flags(answer: str, about_temperature: str, temperature: float | None = None) -> Callable[[Any], Any]:
    """Decorator for a click command: --max-tokens, --temperature, --top-p, --top-k, --seed and --stop.

    `answer`: what the model makes, in a word. What is None is the model's own, as it is for `SamplingParams`.
    """
    options = (
        click.option(
            "--max-tokens", type=TokenCount(1), default=DEFAULT_TOKENS, show_default=True, help=f"Longest {answer}."
        ),
        click.option("--temperature", type=click.FloatRange(0, 100), default=temperature, help=about_temperature),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            help="Draw among the likeliest tokens that have this probability together. Left out: the model's, else 1.",
        ),
        click.option(
            "--top-k",
            type=click.IntRange(0),
            help="Draw among this many tokens; 0: all. Left out: the model's, else 0.",
        ),
        click.option("--seed", type=int, help="Makes what is drawn repeatable."),
        click.option(
            "--stop", multiple=True, help=f"Text that ends the {answer} before it; may be given several times."
        ),
    )

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
