"""What a body holds is told without decoding it, wherever slices end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.server.http import json_size
from homenode.server.http.failures import ApiError

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\[{,é', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a"\\[{,', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def counted(value: Any) -> tuple[int, int]:
    """Containers, and values of any kind."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    parts = [counted(each) for each in inner]
    return isinstance(value, dict | list) + sum(p[0] for p in parts), 1 + sum(p[1] for p in parts)


@given(VALUES, st.sampled_from([1, 2, 3, 5, 64]), st.booleans())
def test_counts(value: Any, slice_bytes: int, ascii_only: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_SLICE_BYTES", slice_bytes)
        size = json_size.json_size(json.dumps(value, ensure_ascii=ascii_only).encode())
    containers, values = counted(value)
    assert size.containers == containers
    assert values <= size.values <= values + containers  # an empty list is taken for one value


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    assert json_size.json_size(body).containers <= len(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 70_000, "70000 lists and objects"),
        (b'{"a":[' + b"{}," * 70_000 + b"{}]}", "lists and objects"),
        (b"[" + b"1," * (2**22 + 1) + b"1]", "values"),
    ],
)
def test_too_much_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        json_size.check_json_size(body)


def test_a_text_of_brackets_is_not_too_much() -> None:
    json_size.check_json_size(json.dumps({"prompt": '[{,"\\' * 100_000}).encode())
