"""Experts that engines keep in common: who owns which, where they lie, what the memory says of itself, and how long
others are waited for.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import PeerError, UserError
from homenode.model.part import ModelPart
from homenode.model.weights.expert_header import (
    HEADER_BYTES,
    HEADER_WORDS,
    IDENTITY,
    MOST_MEMBERS,
    STATE_FAILED,
    STATE_FILLING,
    STATE_NONE,
    STATE_READY,
    ShareState,
    state_of,
    state_word,
)
from homenode.model.weights.expert_share import expert_owners, own_bytes
from homenode.model.weights.expert_table import HUGE_PAGE, PAGE, expert_table, identity_of
from homenode.model.weights.expert_wait import GONE_S, ShareWait
from homenode.model.weights.layout import MatrixLayout, WeightLayout
from homenode.model.weights.packed_file import SourceFile
from tests.model.toys import toy_spec

KINDS = ("gate", "up", "down")


def part_of(experts: tuple[tuple[int, ...], ...], first_layer: int = 0) -> ModelPart:
    """Of a whole model's fields only the layers and the experts matter here."""
    whole = ModelPart.whole(toy_spec())
    return replace(whole, layers=replace(whole.layers, first=first_layer, count=len(experts)), experts=experts)


def layout_of(part: ModelPart, rows: int = 33, columns: int = 64) -> WeightLayout:
    """For each layer a matrix of its own and, kind by kind, those of its experts, as `plan_layout` gives them."""
    matrices = []
    for layer, experts in enumerate(part.experts, part.layers.first):
        matrices.append(MatrixLayout(f"{layer}.query", rows, columns, "F32", "F32", "", 0, 4 * rows * columns))
        for kind in KINDS:
            for e in experts:
                matrices.append(
                    MatrixLayout(f"{layer}.{kind}.{e}", rows, columns, "Q8_0", "Q8_0", "", 0, rows * 68, layer, e)
                )
    return WeightLayout(tuple(matrices), 1000)


def packed_bytes(target: str, rows: int, columns: int) -> int:
    return -(-rows // 32) * 32 * columns * (4 if target == "F32" else 1)


experts_of_layers = st.lists(
    st.sets(st.integers(0, 40), max_size=9).map(lambda some: tuple(sorted(some))), min_size=1, max_size=5
).map(tuple)


@given(experts_of_layers, st.integers(1, 7), st.integers(0, 30))
def test_every_expert_has_one_owner_and_every_layers_experts_are_with_all(
    experts: tuple[tuple[int, ...], ...], members: int, first: int
) -> None:
    part = part_of(experts, first)
    layout = layout_of(part)
    owners = expert_owners(layout, part, members)
    assert set(owners) == {m.name for m in layout.matrices if m.expert is not None}
    assert set(owners.values()) <= set(range(members))
    for layer, some in enumerate(experts, first):
        owned = [owners[f"{layer}.gate.{e}"] for e in some]
        assert all(
            owners[f"{layer}.{kind}.{e}"] == owner for kind in KINDS for e, owner in zip(some, owned, strict=True)
        )
        counts = [owned.count(member) for member in range(members)]
        assert max(counts) - min(counts) <= 1
    all_counts = [sum(owner == member for owner in owners.values()) // len(KINDS) for member in range(members)]
    assert max(all_counts) - min(all_counts) <= 1
    dense = layout.vector_bytes + sum(m.target_bytes for m in layout.matrices if m.expert is None)
    own = [own_bytes(layout, part, member, members) for member in range(members)]
    assert sum(own) == members * dense + layout.target_bytes - dense


def test_experts_are_given_out_by_their_place_in_the_part_not_by_their_number() -> None:
    part = part_of(((0, 2, 4), (0, 2, 4)))  # as a rank of two has them
    owners = expert_owners(layout_of(part), part, 2)
    assert [owners[f"0.up.{e}"] for e in (0, 2, 4)] == [0, 1, 0]
    assert [owners[f"1.up.{e}"] for e in (0, 2, 4)] == [1, 0, 1]


def test_what_is_left_over_goes_to_another_member_in_each_layer() -> None:
    part = part_of(((0, 1, 2, 3),) * 3)
    owners = expert_owners(layout_of(part), part, 3)
    assert [sum(owner == member for owner in owners.values()) for member in range(3)] == [12, 12, 12]


@given(experts_of_layers, st.integers(1, 7), st.integers(1, 400))
def test_matrices_lie_apart_and_shares_begin_on_huge_pages(
    experts: tuple[tuple[int, ...], ...], members: int, rows: int
) -> None:
    part = part_of(experts)
    layout = layout_of(part, rows)
    table = expert_table(layout, part, members, packed_bytes)
    owners = expert_owners(layout, part, members)
    assert {name: m.owner for name, m in table.matrices.items()} == owners
    inside = sorted((m.offset, m.offset + m.size) for m in table.matrices.values())
    assert all(
        end <= begin for (_, end), (begin, _) in pairwise([(0, HEADER_BYTES), *inside, (table.size, table.size)])
    )
    assert all(
        m.offset % PAGE == 0 and m.size == packed_bytes(m.target, m.rows, m.columns) for m in table.matrices.values()
    )
    assert table.size % HUGE_PAGE == 0
    for member in range(members):
        own = [m for m in table.matrices.values() if m.owner == member]
        share = table.share(member)
        assert (share is None) == (not own)
        if share is not None:
            assert (
                share[0] % HUGE_PAGE == 0
                and share[0] == min(m.offset for m in own)
                and share[1] % HUGE_PAGE == 0
                and 0 <= share[1] - max(m.pages[1] for m in own) < HUGE_PAGE
            )
            assert all(before[1] == after[0] for before, after in pairwise(table.runs[member]))


def test_each_run_of_a_share_has_an_expert_of_every_layer() -> None:
    part = part_of(((0, 1, 2, 3, 4, 5),) * 4)
    table = expert_table(layout_of(part), part, 2, packed_bytes)
    for member in range(2):
        assert len(table.runs[member]) == 3
        for begin, end in table.runs[member]:
            here = [name for name, m in table.matrices.items() if begin <= m.offset < end]
            assert sorted({(int(name.split(".")[0]), name.split(".")[1]) for name in here}) == sorted(
                (x, k) for x in range(4) for k in KINDS
            )


def test_a_model_without_experts_has_no_table_and_too_many_members_are_refused() -> None:
    part = part_of(((), ()))
    table = expert_table(layout_of(part), part, 3, packed_bytes)
    assert not table.matrices and [table.share(m) for m in range(3)] == [None] * 3
    assert own_bytes(layout_of(part), part, 1, 3) == layout_of(part).target_bytes
    for members in (0, -1, MOST_MEMBERS + 1):
        with pytest.raises(UserError, match=f"by {members} engines"):
            expert_table(layout_of(part), part, members, packed_bytes)
    assert state_word(MOST_MEMBERS - 1) == HEADER_WORDS - 1


def test_what_the_memory_is_of_changes_with_each_thing_that_matters() -> None:
    part, model = part_of(((0, 1),)), [SourceFile("model.gguf", 100, 5, "00", "11")]

    def identity(
        part: ModelPart = part, rows: int = 33, members: int = 2, file: SourceFile = model[0], packing: str = "p"
    ) -> dict[str, int]:
        return identity_of(
            expert_table(layout_of(part, rows), part, members, packed_bytes), part, members, [file], packing
        )

    first = identity()
    assert (
        list(first) == list(IDENTITY) and all(0 < value < 1 << 64 for value in first.values()) and identity() == first
    )

    def changed(other: dict[str, int]) -> set[str]:
        return {name for name in IDENTITY if other[name] != first[name]}

    assert changed(identity(packing="q")) == {"packing"}
    assert changed(identity(rows=65)) == {"formats"}
    assert changed(identity(file=SourceFile("model.gguf", 100, 6, "00", "11"))) == {"model"}
    assert changed(identity(file=SourceFile("model.gguf", 100, 5, "00", "12"))) == {"model"}
    assert changed(identity(part=replace(part, rank=1, ranks=2))) == {"part"}
    assert changed(identity(members=3)) >= {"members"}


@given(st.integers(0, 3), st.integers(1, 1 << 22), st.integers(0, 1 << 50))
def test_a_state_is_one_word(state: int, pid: int, birth: int) -> None:
    written = ShareState(state, pid, birth)
    read = state_of(written.word)
    assert (
        0 <= written.word < 1 << 64
        and read.state == state
        and read.is_of(pid, birth)
        and not read.is_of(pid + 1, birth)
    )
    assert not read.is_of(pid, birth + 1) and state_of(read.word) == read


@given(st.integers(0, (1 << 64) - 1))
def test_any_word_is_a_state(word: int) -> None:
    assert state_of(word).word == word


class Watched:
    """A waiting for members 1 and 2, what they say, and who is alive."""

    def __init__(self, timeout_s: float = 600.0, first: int = STATE_FILLING) -> None:
        self.waiting = ShareWait([1, 2], timeout_s, 1000.0)
        self.states = {1: ShareState(first, 11), 2: ShareState(STATE_FILLING, 12)}
        self.alive = {11, 12}

    def at(self, seconds: float) -> None:
        self.waiting.look(self.states, lambda state: state.pid in self.alive, 1000.0 + seconds)


def test_who_is_ready_is_waited_for_no_longer_whatever_becomes_of_him() -> None:
    seen = Watched()
    seen.at(0)
    seen.states[1] = ShareState(STATE_READY, 11)
    seen.at(1)
    assert seen.waiting.missing == (2,)
    seen.states[1], seen.states[2] = ShareState(STATE_FAILED, 11), ShareState(STATE_READY, 12)
    seen.at(700)
    assert seen.waiting.missing == ()


def test_a_failure_ends_the_waiting_and_names_the_engine() -> None:
    seen = Watched()
    seen.at(0)
    seen.states[2] = ShareState(STATE_FAILED, 12)
    with pytest.raises(PeerError, match="engine 2 has failed"):
        seen.at(1)


def test_a_failure_from_before_has_time_to_be_mended_once() -> None:
    seen = Watched(first=STATE_FAILED)
    seen.at(0)
    seen.at(GONE_S - 1)
    seen.states[1] = ShareState(STATE_FILLING, 21)
    seen.alive.add(21)
    seen.at(GONE_S + 5)
    seen.states[1] = ShareState(STATE_FAILED, 21)
    with pytest.raises(PeerError, match="engine 1 has failed"):
        seen.at(GONE_S + 6)


@pytest.mark.parametrize("state", [STATE_FILLING, STATE_FAILED])
def test_who_is_gone_has_a_minute_to_come_back(state: int) -> None:
    seen = Watched(first=state)
    seen.alive.remove(11)
    seen.at(0)
    seen.at(GONE_S)
    with pytest.raises(PeerError, match="engine 1 went away"):
        seen.at(GONE_S + 1)


def test_each_absence_is_counted_by_itself() -> None:
    seen = Watched()
    seen.at(0)
    for begin in (100, 200):
        seen.alive.discard(seen.states[1].pid)
        seen.at(begin)
        seen.at(begin + GONE_S - 1)
        seen.states[1] = ShareState(STATE_FILLING, begin)
        seen.alive.add(begin)
        seen.at(begin + GONE_S + 5)


@pytest.mark.parametrize("state", [STATE_NONE, STATE_FILLING])
def test_nobody_is_waited_for_longer_than_was_said(state: int) -> None:
    seen = Watched(timeout_s=30, first=state)
    seen.at(0)
    seen.at(30)
    with pytest.raises(PeerError, match=r"engines 1, 2 have not loaded within 30 s"):
        seen.at(30.1)
