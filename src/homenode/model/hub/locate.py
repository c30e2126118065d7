"""The way from what a person calls a model to a path on this machine. The only file of homenode that uses the network.

None, homenode-builtin     the model that comes with homenode (`builtin` is short for it; a file or folder of that name
goes first) ./folder, model.gguf       itself org/name                   the configuration, tokenizer and safetensors
files of a Hub repository org/name:model.gguf        one GGUF model of a repository, by file name ... org/name:Q4_K_M
... or by the quantisation in its name
"""

from __future__ import annotations

import errno
import importlib.resources
import re
from pathlib import Path

from homenode.errors import InternalError, UserError
from homenode.model.hub.candidate import Choice, take_only
from homenode.model.hub.failures import NAMES

_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<pick>[\w./-]+))?", re.ASCII)
BUILTIN_NAME = "homenode-builtin"  # what the model that comes with homenode is called in public


def locate(
    model: str | None,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    progress: bool = True,
    choice: Choice = take_only,
) -> Path:
    """The folder or file of `model`, fetched into the Hub's cache if need be.

    Before weights are fetched a model is refused that homenode does not run or that the disk has no room for; then
    `choice` is asked, which may refuse it, too, and takes one of several GGUF models where none was named. Models that
    the cache holds are not judged.

    `offline` (or HF_HUB_OFFLINE=1) uses the cache only. `token` is the Hub's access token, by default the one
    huggingface_hub finds. `progress` tells on stderr how far a fetch is. Raises UserError for a name that leads
    nowhere, saying what to do, and HostError when the cache cannot be written.
    """
    if model is None:
        return builtin_model()
    path = _expanded(model)
    if model and _exists(path):
        return path
    if model in (BUILTIN_NAME, "builtin"):
        return builtin_model()
    match = _HUB_ID.fullmatch(model)
    if match is None or model.startswith((".", "~")) or match["repository"].endswith(".gguf"):
        raise UserError(f"model {model!r}: no such file or folder, and no Hub id; {NAMES}", param="model")
    from homenode.model.hub.fetch import HubSource  # most starts name a local model

    source = HubSource(match["repository"], match["pick"], revision, token, offline, cache_dir, progress)
    return source.fetch(choice)


def builtin_model() -> Path:
    """The folder of the model that comes with homenode."""
    # An editable installation has several package folders.
    folder = Path(str(importlib.resources.files("homenode").joinpath("builtin")))
    if not (folder / "config.json").is_file():
        raise InternalError(
            f"the built-in model is missing from this installation ({folder}); install homenode again, or name a model"
        )
    return folder


def _expanded(model: str) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError:  # ~name of nobody on this machine
        return Path(model)


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except ValueError:  # a NUL in the name
        return False
    except (
        OSError
    ) as error:  # where the machine refuses to look, there may be something: whoever reads it says what is wrong
        return error.errno != errno.ENAMETOOLONG
