"""Pictures in conversations of a Python program: where their rows stand, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homenode.engine.api.chat_pictures import ChatPictures, without_pictures
from homenode.engine.encoder.picture_places import placed_rows
from homenode.engine.inputs import ROW_DIGEST_BYTES, PromptRows
from homenode.errors import UserError
from homenode.model.pictures.decoded import PictureError
from homenode.model.pictures.family import PictureLayout

PLACE = ord("#")


def rows(count: int, of: bytes = b"a") -> PromptRows:
    return PromptRows(of * 4 * count, 1, of * ROW_DIGEST_BYTES * count, PLACE)


class Letters:
    """A vocabulary of letters."""

    def token_text(self, token: int) -> str:
        return chr(token)

    def encode_chat(self, text: str) -> list[int]:
        return list(map(ord, text))


class Decoder:
    def decode(self, data: bytes, *, alone: bool) -> Any:
        if data == b"bad":
            raise PictureError("it is damaged")
        return SimpleNamespace(layout=PictureLayout((1, 1), (1, 1), (1, 1), alone), data=data)


def seeing(made: int = 2) -> ChatPictures:
    found = ChatPictures.__new__(ChatPictures)
    family = SimpleNamespace(
        placeholder=PLACE, marker_token="@", written=lambda layout, names, number: f"<{names(PLACE) * 2}>"
    )
    encoder = SimpleNamespace(encode=lambda picture: rows(made, picture.data))
    found._parts = SimpleNamespace(family=family, decoder=Decoder(), encoder=encoder)  # type: ignore[assignment]
    return found


def see(pictures: ChatPictures, text: str, *data: bytes) -> Any:
    return pictures.see(Letters(), text, data)  # type: ignore[arg-type]


def test_rows_stand_where_the_template_writes_a_picture() -> None:
    seen = see(seeing(), "ab@c@", b"x", b"y")
    assert "".join(map(chr, seen.ids)) == "ab<##>c<##>"
    assert [(each.first, each.rows.data[:1]) for each in seen.rows] == [(3, b"x"), (8, b"y")]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="2 places for 1 image; leave '@' out"):
        see(seeing(), "a@@", b"x")
    with pytest.raises(UserError, match="image 2 cannot be read: it is damaged"):
        see(seeing(), "a@@", b"x", b"bad")
    with pytest.raises(UserError, match="2 places for 3 rows of images"):
        see(seeing(made=3), "a@", b"x")


def test_rows_of_a_picture_are_parted_where_marks_stand_between() -> None:
    found = placed_rows(PLACE, list(map(ord, "a##|#")), [rows(3)], 0)
    assert isinstance(found, list) and [(each.first, len(each.rows)) for each in found] == [(1, 2), (4, 1)]


def test_parts_are_read_from_files_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"file")
    parts = [{"type": "text", "text": "see"}, {"type": "image", "image": str(tmp_path / "a.png")}]
    told, found = without_pictures([{"role": "user", "content": [*parts, {"type": "image", "image": b"bytes"}]}])
    assert told == [{"role": "user", "content": [parts[0], {"type": "image"}, {"type": "image"}]}]
    assert found == [b"file", b"bytes"]
    for wrong in (7, str(tmp_path / "missing.png"), str(tmp_path)):
        with pytest.raises(UserError, match=r"image .* (cannot be read|give the path)|give the path"):
            without_pictures([{"role": "user", "content": [{"type": "image", "image": wrong}]}])
    assert without_pictures([{"role": "user", "content": "plain"}]) == ([{"role": "user", "content": "plain"}], [])


def test_a_model_that_sees_none_says_so() -> None:
    ready: Any = SimpleNamespace(details={}, pooling=None, row_columns=0, model="toy")
    with pytest.raises(UserError, match="the model toy sees no images"):
        ChatPictures(Path("/no/such"), ready)
