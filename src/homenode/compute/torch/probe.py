"""`python -m homenode.compute.torch.probe KIND...`: how many devices of each kind torch sees, as a line of JSON. A process of its own, since asking
imports torch and wakes drivers."""

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


if __name__ == "__main__":
    print(json.dumps({kind: count(kind) for kind in sys.argv[1:]}))
