"""Types of keys and values: their bytes, and that every backend keeps each."""

from __future__ import annotations

import pytest

from homenode.compute.ops import KvGeometry, LayerKv
from homenode.engine.scheduler_config import KvConfig
from homenode.kv_types import KV_CHOICES, KV_TYPES, KvFormat
from homenode.options import options_of


def test_bytes_of_a_token() -> None:
    shape = LayerKv(2, 64, 64)
    assert {name: shape.token_bytes(name) for name in KV_TYPES} == {"f32": 1024, "bf16": 512, "int8": 2 * 2 * 68}
    assert [KvFormat("q4", 4, 2).vector_bytes(elements) for elements in (64, 63)] == [34, 34]


@pytest.mark.parametrize("name", KV_TYPES)
def test_only_types_without_scales_are_cells_alike(name: str) -> None:
    unlike = KvGeometry((LayerKv(1, 64, 64), LayerKv(1, 32, 32)), 32, name)
    assert unlike.is_even is not KV_TYPES[name].has_scales
    assert not KvGeometry((LayerKv(1, 64, 32),), 32, name).is_even


def test_the_setting_has_every_type_and_every_backend_keeps_it() -> None:
    from homenode.compute.reference.kv import AS_STORED

    assert options_of(KvConfig)["kv_cache_dtype"][1].choices == KV_CHOICES
    assert AS_STORED.keys() == KV_TYPES.keys()
