"""Positions of pictures: by which rope turns, which rows see each other, and that a step cuts none of those."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from homenode.engine.inputs import PictureGrid, PlacedRows, PromptRows, grids_of, rows_problem, spans_of
from homenode.engine.scheduler.steps.budget import _with_whole_pictures
from homenode.engine.worker.picture_places import PicturePlaces
from homenode.model.pictures import pixels
from homenode.model.pictures.families.qwen2_5_vl import _windows


def positions_of(length: int, grids: list[PictureGrid]) -> np.ndarray:
    """The positions of a whole sequence, one token after the other: [3, length]."""
    found, at, place = np.zeros((3, length), np.int32), 0, 0
    while at < length:
        grid = next((grid for grid in grids if grid.first == at), None)
        if grid is None:
            found[:, at] = place
            at, place = at + 1, place + 1
            continue
        for number in range(grid.rows * grid.columns):
            found[:, at + number] = place, place + number // grid.columns, place + number % grid.columns
        at, place = grid.past, place + max(grid.rows, grid.columns)
    return found


def test_positions_of_any_part_are_those_of_the_whole() -> None:
    rng = random.Random(5)
    for _ in range(40):
        grids, at = [], rng.randrange(3)
        for _ in range(rng.randrange(4)):
            grids.append(PictureGrid(at, rng.randrange(1, 5), rng.randrange(1, 5)))
            at = grids[-1].past + rng.randrange(1, 4)
        length = at + rng.randrange(1, 8)
        whole = positions_of(length, grids)
        start = rng.randrange(length)
        end = rng.randrange(start + 1, length + 1)
        part = np.repeat(np.arange(start, end, dtype=np.int32)[None], 3, axis=0)
        PicturePlaces(tuple(grids)).turn(part, start)
        assert part.tolist() == whole[:, start:end].tolist()


def test_rows_see_the_whole_of_their_picture() -> None:
    places = PicturePlaces(spans=((2, 5), (7, 9)))
    seen = np.zeros((6, 2), np.int32)
    places.see(seen, 3)
    assert seen.tolist() == [[2, 5], [2, 5], [0, 0], [0, 0], [7, 9], [7, 9]]


def rows(count: int, grid: tuple[int, int] = (0, 0), *, together: bool = False) -> PromptRows:
    return PromptRows(bytes(4 * count), 1, bytes(32 * count), 5, grid, together)


def test_grids_and_spans_are_those_of_the_rows_that_have_them() -> None:
    placed = [PlacedRows(1, rows(6, (2, 3))), PlacedRows(9, rows(2)), PlacedRows(12, rows(3, together=True))]
    assert grids_of(placed) == [PictureGrid(1, 2, 3)] and grids_of(placed)[0].saved == 3
    assert spans_of(placed) == [(12, 15)]
    assert rows_problem([5] * 20, placed) is None


@pytest.mark.parametrize("grid", [(2, 2), (0, 6), (-2, -3)])
def test_a_grid_of_another_number_of_places_is_told(grid: tuple[int, int]) -> None:
    assert "places" in str(rows_problem([5] * 6, [PlacedRows(0, rows(6, grid))]))


@pytest.mark.parametrize(
    ("start", "count", "left", "computed"),
    [
        (0, 4, 99, 4),  # before the picture
        (0, 12, 99, 10),  # up to it
        (10, 3, 10, 10),  # all of it, though prompts were to have less
        (10, 3, 9, 0),  # which the step has no room for
        (0, 20, 99, 20),  # it ends with the picture
        (0, 25, 99, 25),
        (20, 3, 0, 3),
    ],
)
def test_a_picture_whose_rows_see_each_other_is_not_cut(start: int, count: int, left: int, computed: int) -> None:
    assert _with_whole_pictures([(10, 20)], start, count, left) == computed


@pytest.mark.parametrize(("rows", "columns", "side"), [(4, 4, 4), (5, 7, 4), (1, 9, 4), (3, 2, 1)])
def test_windows_hold_every_block_once(rows: int, columns: int, side: int) -> None:
    order, lengths = _windows(rows, columns, side)
    assert sorted(order.tolist()) == list(range(rows * columns)) and sum(lengths) == rows * columns
    begin = 0
    for length in lengths:
        places = {(n // columns // side, n % columns // side) for n in order[begin : begin + length].tolist()}
        assert len(places) == 1
        begin += length


@pytest.mark.parametrize("table", [pixels.nearest_table, pixels.nearest_table_of_quotients])
@pytest.mark.parametrize("side", [4, 7, 10, 14, 24, 26, 28, 30, 32, 70])
def test_a_tile_as_large_as_the_table_has_each_position_once(table: Any, side: int) -> None:
    """Boundaries that drift in float32 give places of whole squares the position before theirs."""
    rows = np.arange(side * side, dtype=np.float32).reshape(-1, 1)
    assert np.array_equal(table(rows, side, side), rows)
    if side % 2 == 0:
        assert np.array_equal(table(rows, side, side // 2)[: side // 2, 0], np.arange(0, side, 2))
