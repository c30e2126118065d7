"""Draw the states of a KV transfer in docs/kv-transfer-states.md: `python -m tools.transfer_states` (a test holds the
page up to date).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from homenode.transfer.state.machine import RECEIVE_TRANSITIONS, SEND_TRANSITIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "kv-transfer-states.md"
_INTRODUCTION = """# States of a KV transfer

Each side of a [KV transfer](kv-transfer.md) is a state machine without I/O. The tables are those that the code follows
(`transfer/state/machine.py`): a transition that is not in them is an internal error. An arrow is taken for a frame of
the other side, a message of this side's scheduler, a copy that has ended, a lost connection, or a deadline.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION, *_side("The sender", SEND_TRANSITIONS), *_side("The receiver", RECEIVE_TRANSITIONS)]
    return "\n".join(parts)


def _side(title: str, transitions: Mapping[Any, Any]) -> Iterator[str]:
    yield f"## {title}\n\n```mermaid\nstateDiagram-v2"
    states: list[Enum] = list(transitions)
    yield f"    [*] --> {states[0].name}"
    for state in states:
        for after in sorted(transitions[state], key=states.index):
            yield f"    {state.name} --> {after.name}"
        if not transitions[state]:
            yield f"    {state.name} --> [*]"
    yield "```\n\n| state | what holds in it | next |\n|---|---|---|"
    for state in states:
        after = ", ".join(f"`{each.name}`" for each in sorted(transitions[state], key=states.index))
        yield f"| `{state.name}` | {state.value} | {after} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
