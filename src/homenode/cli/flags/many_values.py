"""Flags that take several values in a row, as the field's commands do: `--numa-bind-nodes 0 0 1 1`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

# By flag: what each of its values looks like.
_MANY = {
    "--numa-bind-nodes": re.compile(r"\d+$"),
    "--numa-bind-cpus": re.compile(r"[!+]*(\d[\dxXa-fA-F,-]*(all)?|all|same)$"),
    **dict.fromkeys(("--pd-peer-init-port", "--pd-peer-alloc-port", "--pd-pull-done-port"), re.compile(r"\d[\d,]*$")),
}


class ManyValuesCommand(click.Command):
    """A command whose flags in _MANY take all the values that follow them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: list[str], many: Mapping[str, re.Pattern[str]] = _MANY) -> list[str]:
    """`--numa-bind-nodes 0 0 1` -> `--numa-bind-nodes 0 --numa-bind-nodes 0 --numa-bind-nodes 1`; nothing after `--` is
    touched."""
    out: list[str] = []
    left = list(args)
    while left and left[0] != "--":
        word = left.pop(0)
        values = 0
        while word in many and left and (values == 0 or many[word].match(left[0])) and not left[0].startswith("--"):
            out += [word, left.pop(0)]
            values += 1
        if not values:
            out.append(word)
    return out + left
