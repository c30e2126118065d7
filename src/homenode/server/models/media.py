"""The media of messages besides text: one table says what APIs call the parts of each, how one is refused that the
served model cannot take, and how a medium becomes rows of a model, where homenode has a maker of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from homenode.server.models.picture_setup import picture_work

if TYPE_CHECKING:
    from homenode.engine.messages import EngineReady
    from homenode.server.http.config import ServedModelConfig
    from homenode.server.models.media_work import MediaWork

MediaKind = Literal["image", "audio", "video", "file"]
Taken = frozenset[MediaKind]  # the kinds that a model takes
Works = Mapping[MediaKind, "MediaWork"]
NO_MEDIA: Taken = frozenset()


@dataclass(frozen=True)
class MediaInput:
    """The way of a medium into a model. `fields`: of a part, those that may have its address or its bytes. `limit`: the
    setting that says how many a request may have. `settings`: all that the maker reads. `accept`: the types of files
    that hosts are asked for. `make`: its decoder and encoder for one model, whose engine is ready; None: this model
    takes none.
    """

    fields: tuple[str, ...]
    limit: str
    settings: tuple[str, ...]
    accept: str
    make: Callable[[Path, EngineReady, ServedModelConfig], MediaWork | None]


@dataclass(frozen=True)
class Medium:
    """One kind of parts that are no text. `types`: what the APIs call it. `refusal`: what is said of one that the
    served model cannot take. `input`: how it becomes rows; None: no model takes it.
    """

    types: tuple[str, ...]
    refusal: str
    input: MediaInput | None = None


_PICTURES = MediaInput(
    fields=("image_url",),
    limit="limit_images",
    settings=("limit_images", "media_path", "media_domains", "encoder_cache_size", "encoder_cpus"),
    accept="image/*",
    make=picture_work,
)
MEDIA: dict[MediaKind, Medium] = {
    "image": Medium(
        ("image", "image_url", "input_image", "output_image", "image_embeds", "computer_screenshot"),
        "an image, which this model cannot see; leave it out",
        _PICTURES,
    ),
    "audio": Medium(
        ("audio", "audio_url", "input_audio"),
        "audio, which this model cannot hear; send what is said as text",
    ),
    "video": Medium(
        ("video", "video_url", "input_video"),
        "a video, which this model cannot see; leave it out",
    ),
    "file": Medium(
        ("file", "input_file", "document", "container_upload"),
        "a file that is not plain text, which this model cannot read; send its text",
    ),
}


def media_input(kind: MediaKind) -> MediaInput:
    """The way of a medium that a model takes."""
    found = MEDIA[kind].input
    assert found is not None  # a model takes what was made for it
    return found


def media_works(path: Path, ready: EngineReady, config: ServedModelConfig) -> dict[MediaKind, MediaWork]:
    """What makes rows for the model at `path`, by medium, its engine being ready. UserError as makers have it."""
    found = {}
    for kind, medium in MEDIA.items():
        if medium.input is not None and (work := medium.input.make(path, ready, config)) is not None:
            found[kind] = work
    return found


def unread_settings(config: ServedModelConfig, taken: Works) -> list[tuple[str, MediaKind]]:
    """The flags that were given for media, of which the model takes none that reads them; each with such a medium."""
    usual: dict[str, Any] = {each.name: each.default for each in fields(config)}
    read = {name for kind in taken for name in media_input(kind).settings}
    wanted = [
        (name, kind)
        for kind, medium in MEDIA.items()
        for name in (medium.input.settings if medium.input else ())
        if name not in read and getattr(config, name) != usual[name]
    ]
    return [(f"--{name.replace('_', '-')}", kind) for name, kind in dict(wanted).items()]
