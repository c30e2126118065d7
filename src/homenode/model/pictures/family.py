"""The parts of a family of models that see, and what they hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import FloatArray
from homenode.model.formats.fields import Fields
from homenode.model.spec import PictureSpec

if TYPE_CHECKING:
    from PIL.Image import Image

    from homenode.model.pictures.blocks import BlockForm
    from homenode.model.pictures.mmproj import GgufTower
    from homenode.model.pictures.tower import Tower

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]


class PictureLayout(NamedTuple):
    """The way a picture was cut. `tiles`: how many rows and columns of tiles; `size`: height and width of it before it
    was cut, or of what one tile shows; `original`: before it was scaled.
    """

    tiles: tuple[int, int]
    size: tuple[int, int]
    original: tuple[int, int]
    alone: bool = True  # no other picture is in the same request

    @classmethod
    def of(cls, words: Sequence[Any]) -> PictureLayout:
        """The layout that JSON has as these. ValueError and TypeError for what is none."""
        (rows, columns), (high, wide), (height, width), alone = words
        return cls((int(rows), int(columns)), (int(high), int(wide)), (int(height), int(width)), bool(alone))


@dataclass(frozen=True)
class PreparedPicture:
    """A picture as its tower takes it: tiles of pixels that were scaled and cut, none of them normalised yet."""

    tiles: Sequence[Pixels]
    layout: PictureLayout


@dataclass(frozen=True)
class PictureRows:
    """Rows for the text model, [n, columns], in the order of the placeholders that stand for them. `grid`: rows and
    columns of the places by which the text's rope turns; 0, 0: it turns by their numbers.
    """

    rows: FloatArray
    grid: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class PictureConfig:
    """What a model's files say of pictures. `raw`: config.json, which lies at `path`. `processor`: the fields of the
    image processor. `whole`: what processor_config.json says besides.
    """

    path: Path
    raw: Mapping[str, Any]
    processor: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Fields:
        """The fields of config.json."""
        return Fields(self.path, self.raw)


Names = Callable[[int], str]  # of tokens


class PictureFamily(Protocol):
    """One family, made of a model's configuration. `placeholder`: the token that stands for a row. `marker_token`: the
    one that a chat template writes for a picture, or its name; None: the placeholder; empty: no template writes one, as
    `written` is all that stands for a picture, so that it may stand in any text. `form`: of the tower's blocks.
    """

    @property
    def placeholder(self) -> int: ...
    @property
    def marker_token(self) -> int | str | None: ...
    @property
    def form(self) -> BlockForm: ...

    def prepare(self, picture: Image, alone: bool) -> PreparedPicture:
        """Scale and cut a picture; this alone runs where it was decoded. ValueError for one that cannot be."""

    def written(self, layout: PictureLayout, names: Names, number: int) -> str:
        """Return what stands in a prompt for the picture `number` of it."""

    def load(self, tower: Tower) -> None:
        """Make the programs of a tower, before any picture is encoded. CheckpointError for what it lacks."""

    def encode(self, tower: Tower, picture: PreparedPicture) -> PictureRows:
        """The rows of a picture."""


@dataclass(frozen=True)
class FamilyFormat:
    """A family as the registry knows it. `spec`: how its rows enter the text model. UnsupportedError from `make` for a
    form of the family that homenode does not run. `gguf`: how its GGUF files are; None: there are none.
    """

    spec: Callable[[PictureConfig], PictureSpec]
    make: Callable[[PictureConfig], PictureFamily]
    gguf: GgufTower | None = None
