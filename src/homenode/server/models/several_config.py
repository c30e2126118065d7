"""Settings of a server of several models."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.errors import UserError
from homenode.options import option
from homenode.units import parse_bytes, parse_seconds


def _positive_bytes(text: str) -> int:
    size = parse_bytes(text)
    if not size:
        raise UserError("it must be more than 0")
    return size


@dataclass(frozen=True)
class SeveralModelsConfig:
    """The models, and how much memory they may take."""

    models: tuple[str, ...] = option(
        (),
        "Serve several models, each loaded when it is asked for: a TOML file with a table [models.NAME] for each, a "
        "folder of models, or a model; may be given several times.",
        metavar="FILE|DIR",
    )
    models_memory: int | None = option(
        None,
        "Memory that the models may take together while they are loaded, such as 256GiB. Default: what is available.",
        parse=_positive_bytes,
        metavar="SIZE",
    )
    model_wait_timeout: float = option(
        600.0,
        "How long a request waits for its model to be loaded before it is refused, such as 10min.",
        parse=parse_seconds,
        minimum=1,
    )
    models_lend_after: float = option(
        600.0,
        "How long nobody has asked for a model that lends its cores to the loaded ones of its node, such as 10min.",
        parse=parse_seconds,
        minimum=1,
    )
