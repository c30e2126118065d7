"""What is written while a stream is held comes after it, all of it and in order; nothing else is changed."""

from __future__ import annotations

import io
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.logs.held import HeldStream

_STEPS = st.lists(st.sampled_from(["hold", "let go", "log", "answer"]), max_size=40)


@given(_STEPS)
def test_lines_stand_whole_outside_of_holds_and_none_is_lost(steps: list[str]) -> None:
    out = io.StringIO()
    stream, holds = HeldStream(out), [ExitStack()]
    written, number = [], 0
    for step in steps:
        match step:
            case "hold":
                holds.append(ExitStack())
                holds[-1].enter_context(stream.hold())
            case "let go" if len(holds) > 1:
                holds.pop().close()
            case "log":
                number += 1
                written.append(f"line {number}\n")
                before = out.getvalue()
                stream.write(written[-1])
                assert out.getvalue() == (before if len(holds) > 1 else before + written[-1])
            case "answer":
                out.write(".")
    while holds:
        holds.pop().close()
    assert out.getvalue().replace(".", "") == "".join(written)


def test_the_end_of_a_hold_comes_with_an_error_too() -> None:
    out = io.StringIO()
    stream = HeldStream(out)
    with pytest.raises(ValueError, match="broken"), stream.hold():
        stream.write("a warning\n")
        raise ValueError("broken")
    assert out.getvalue() == "a warning\n"


def test_what_is_kept_is_bounded_and_the_rest_is_counted() -> None:
    out = io.StringIO()
    stream = HeldStream(out, limit=20)
    with stream.hold():
        for _ in range(5):
            stream.write("ten chars\n")
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["ten chars"] * 2
    assert lines[2].startswith("homenode: 3 lines of the log were dropped here")


def test_threads_may_write_while_others_hold() -> None:
    out = io.StringIO()
    stream = HeldStream(out)

    def write() -> None:
        for _ in range(500):
            stream.write("line\n")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        with stream.hold():
            pass
    for thread in threads:
        thread.join(60)
    assert out.getvalue() == "line\n" * 2000
