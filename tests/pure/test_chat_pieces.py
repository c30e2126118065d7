"""The special tokens that a file adds to a conversation: never twice, and the same however the ids come in pieces."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from homenode.model.tokenizer.surrounding_tokens import SurroundingTokens

_IDS = st.lists(st.integers(0, 3), max_size=6)
_AROUND = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@given(_IDS, _AROUND, _AROUND, st.booleans(), st.sampled_from([None, False, True]), st.data())
def test_a_conversation_gets_what_it_lacks_once(
    ids: list[int],
    before: tuple[int, ...],
    after: tuple[int, ...],
    opens: bool,
    asked: bool | None,
    data: st.DataObject,
) -> None:
    around = SurroundingTokens(before, after, opens)
    whole = around.chat_prompt(ids, asked)
    first = before if asked or (asked is None and opens) else ()
    last = after if asked else ()
    assert tuple(whole[: len(first)]) == first and tuple(whole[len(whole) - len(last) :]) == last
    assert len(ids) <= len(whole) <= len(ids) + len(first) + len(last)
    if tuple(ids[: len(first)]) == first and tuple(ids[len(ids) - len(last) :]) == last:
        assert whole == ids, "what is there already is not added again"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=3)))
    pieces = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert list(chain.from_iterable(around.chat_pieces(pieces, asked))) == whole
