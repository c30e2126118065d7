"""How tests wait: what comes back, and what a failure says."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import wait_in_loop, wait_until


def test_what_a_condition_came_to_is_returned() -> None:
    answers = iter([0, "", None, [7]])
    assert wait_until(lambda: next(answers), every_s=0) == [7]


def test_a_failure_says_what_was_waited_for() -> None:
    def never() -> bool:
        return False

    for what, words in (("the end", "the end"), (lambda: ["seen"], "seen"), ("", "def never")):
        with pytest.raises(AssertionError, match=rf"not within 0.01 s: .*{words}"):
            wait_until(never, what, 0.01)
        with pytest.raises(AssertionError, match=rf"not within 0.01 s: .*{words}"):
            asyncio.run(wait_in_loop(never, what, 0.01))


def test_a_condition_in_a_loop_that_does_not_answer_has_a_deadline() -> None:
    async def hangs() -> bool:
        await asyncio.Event().wait()
        return True

    async def fails() -> bool:
        raise TimeoutError("its own")

    with pytest.raises(AssertionError, match="hangs"):
        asyncio.run(wait_in_loop(hangs, patience_s=0.01))
    with pytest.raises(TimeoutError, match="its own"):
        asyncio.run(wait_in_loop(fails))


def test_a_condition_in_a_loop_may_be_of_either_kind() -> None:
    async def test() -> None:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, event.set)
        await wait_in_loop(event.is_set)
        await wait_in_loop(event.wait)

    asyncio.run(test())
