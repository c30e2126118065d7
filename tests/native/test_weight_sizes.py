"""The sizes that a layout over nodes counts with are those that weights have."""

from __future__ import annotations

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.dtypes import BY_NAME
from homenode.host.plan.numa.node_teams import NodeTeam
from homenode.model.weights.layout import MatrixLayout, WeightLayout, padded_row_bytes
from homenode.model.weights.node_placement import GROUP_ROWS, plan_weight_nodes, stored_group_bytes
from homenode.model.weights.numa_layout import packed_group_bytes

SHAPES = [(1, 256), (32, 256), (33, 512), (200, 768)]
TEAMS = (NodeTeam(0, 0, (0, 1), None), NodeTeam(1, 1, (2,), None))


@pytest.fixture(scope="module")
def backend() -> NativeBackend:
    return NativeBackend((-1, -1, -1))


def counted(backend: NativeBackend, target: str, rows: int, columns: int) -> int:
    """Bytes of a matrix over the nodes, as a layout counts them."""
    matrix = MatrixLayout("w", rows, columns, target, target, "", 0, rows * padded_row_bytes(BY_NAME[target], columns))
    homes = plan_weight_nodes(WeightLayout((matrix,), 0), TEAMS, "shard", group_bytes=packed_group_bytes(backend))
    assert homes.size == homes.total
    return homes.total


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("target", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_a_layout_counts_the_bytes_a_weight_takes(backend: NativeBackend, target: str, rows: int, columns: int) -> None:
    weight = backend.weight_from_array(np.zeros((rows, columns), np.float32), target)
    assert counted(backend, target, rows, columns) == weight.nbytes


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_every_format_is_counted_as_it_is_packed(backend: NativeBackend, rows: int, columns: int) -> None:
    for target in backend.weight_types():
        size = counted(backend, target, rows, columns)
        assert size == backend.packed_bytes(target, rows, columns), target
        assert size == pytest.approx(-(-rows // GROUP_ROWS) * stored_group_bytes(target, columns), rel=0.2), (
            "without the core it is near"
        )
