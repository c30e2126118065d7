"""`python -m homenode.compute.torch.probe [--memory] KIND...`: how many devices of each kind torch sees, as a line of
JSON; with --memory, for each of them the bytes that are free and that there are. A process of its own, since asking
imports torch and wakes drivers.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch

from homenode.compute.devices import PLUGINS


def count(kind: str) -> int:
    """Devices of a kind; none where its plugin or its driver does not work."""
    if kind == "cpu":
        return 1
    if kind in PLUGINS:
        try:
            importlib.import_module(PLUGINS[kind])
        except Exception as error:  # a plugin fails in as many ways as its driver
            print(f"{PLUGINS[kind]}: {error}", file=sys.stderr)
            return 0
    calls = getattr(torch, kind, None)
    return int(calls.device_count()) if calls is not None and calls.is_available() else 0


def memory(kind: str) -> list[tuple[int, int]]:
    """(free, total) of each device; none where torch does not tell for the kind."""
    tell = getattr(getattr(torch, kind, None), "mem_get_info", None)
    return [tell(index) for index in range(count(kind))] if tell is not None else []


if __name__ == "__main__":
    ask, kinds = (memory, sys.argv[2:]) if sys.argv[1:2] == ["--memory"] else (count, sys.argv[1:])
    print(json.dumps({kind: ask(kind) for kind in kinds}))
