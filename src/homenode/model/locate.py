"""From what a person calls a model to a path on this machine. The only file of homenode that uses the network.

None                       the model that comes with homenode
./folder, model.gguf       itself
org/name                   the configuration, tokenizer and safetensors files of a Hub repository
org/name:model.gguf        one GGUF model of a repository, by file name ...
org/name:Q4_K_M            ... or by the quantisation in its name
"""

from __future__ import annotations

import errno
import importlib.resources
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from homenode.errors import CapacityError, HomenodeError, HostError, InternalError, UserError

# Pickled weights (.bin, .pth) are left out: they can run code, and we do not read them.
_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt")
_NOT = ("*/*", "consolidated*", "*.index.fp32.json")
_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<pick>[\w./-]+))?", re.ASCII)
_SHARD = re.compile(r"-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf")

_EXPLAIN = "give a folder, a .gguf file, or a Hub id such as Qwen/Qwen3-0.6B or org/name:Q4_K_M"

BUILTIN_NAME = "homenode-builtin"  # what the model that comes with homenode is called in public


def locate(
    model: str | None,
    *,
    revision: str | None = None,
    token: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    progress: bool = True,
    memory: int | None = None,
) -> Path:
    """The folder or file of `model`, fetched into the Hub's cache if need be.

    Before weights are fetched a model is refused that homenode does not run, that the disk has no room for, or whose weights take more than `memory` bytes.

    `offline` (or HF_HUB_OFFLINE=1) uses the cache only. `token` is the Hub's access token, by default the one huggingface_hub finds.
    `progress` shows the Hub library's own bars on stderr. Raises UserError for a name that leads nowhere, saying what to do, and HostError
    when the cache cannot be written.
    """
    if model is None:
        return builtin_model()
    path = _expanded(model)
    if model and _exists(path):
        return path
    match = _HUB_ID.fullmatch(model)
    if match is None or model.startswith((".", "~")) or match["repository"].endswith(".gguf"):
        raise UserError(f"model {model!r}: no such file or folder, and no Hub id; {_EXPLAIN}", param="model")
    repository, pick = match["repository"], match["pick"]
    folder = _fetch(repository, *_patterns(pick), revision, token, offline, cache_dir, progress, memory)
    return _check_folder(folder, repository) if pick is None else _pick_gguf(folder, repository, pick)


def builtin_model() -> Path:
    """The folder of the model that comes with homenode."""
    folder = Path(
        str(importlib.resources.files("homenode").joinpath("builtin"))
    )  # an editable installation has several package folders
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


def _patterns(pick: str | None) -> tuple[list[str], list[str]]:
    """What to fetch and what to leave out."""
    if pick is None:
        return list(_FILES), list(_NOT)
    if pick.endswith(".gguf"):
        return [_SHARD.sub(lambda m: f"-?????-of-{m['count']}.gguf", pick)], []
    spellings = dict.fromkeys((pick, pick.upper(), pick.lower()))
    return [f"*{spelling}*.gguf" for spelling in spellings], ["mmproj*", "*/mmproj*"]


def _fetch(
    repository: str,
    wanted: list[str],
    unwanted: list[str],
    revision: str | None,
    token: str | None,
    offline: bool,
    cache_dir: Path | None,
    progress: bool,
    memory: int | None,
) -> Path:
    import huggingface_hub  # slow to import, and most starts name a local model

    options: dict[str, Any] = {} if progress else {"tqdm_class": _silent_bar()}

    def fetch(patterns: list[str], without: list[str], **more: Any) -> Path:
        found = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=offline,
            allow_patterns=patterns,
            ignore_patterns=without,
            **options | more,
        )
        return Path(str(found))

    try:
        if not offline and not _hub_is_offline():
            _judge(repository, wanted, unwanted, revision, token, cache_dir, memory, fetch)
        return fetch(wanted, unwanted)
    except HomenodeError:
        raise
    except (
        Exception
    ) as error:  # the library lets those of its HTTP client through: no narrower base covers what a fetch can raise
        raise _explained(error, repository, revision, offline) from error


def _judge(
    repository: str, wanted: list[str], unwanted: list[str], revision: str | None, token: str | None, cache_dir: Path | None,
    memory: int | None, fetch: Callable[..., Path],
) -> None:  # fmt: skip
    """Refuse, before weights are fetched, what cannot be run or kept here. What the Hub does not describe is judged when it is there."""
    from homenode.model.checkpoint.folder import CONFIG, refuse_unsupported_config
    from homenode.model.hub import refusals
    from homenode.model.hub.repository import cache_folder, describe

    try:
        described = describe(repository, revision, token)
    except (
        Exception
    ):  # of the HTTP client, too; fetching meets the same fault, and explains it or finds the files in the cache
        return
    cache = cache_folder(cache_dir)
    files = described.missing(cache, wanted, unwanted)
    weights = [file for file in files if file.is_weights]
    if not weights:
        return
    refusals.refuse_gguf_architecture(described, files)
    refusals.refuse_without_disk(repository, files, cache)
    if any(file.name == CONFIG for file in described.files) and not weights[0].name.endswith(".gguf"):
        folder = fetch(
            [pattern for pattern in wanted if "safetensors" not in pattern], unwanted, tqdm_class=_silent_bar()
        )
        try:
            refuse_unsupported_config(folder)
        except UserError as error:
            error.message = f"model {repository}: {error.message}"
            raise
        refusals.refuse_without_memory(repository, sum(file.size for file in weights), memory)
    elif len(weights) == 1:
        refusals.refuse_without_memory(repository, weights[0].size, memory)


def _silent_bar() -> type[Any]:
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Silent(tqdm):  # type: ignore[misc]
        """A progress bar that shows nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # the Hub library's own bars know it, tqdm does not
            super().__init__(*args, **kwargs | {"disable": True})

    return Silent


def _explained(error: Exception, repository: str, revision: str | None, offline: bool) -> HomenodeError:
    """The Hub library's error as one that says what to do. Its text is kept out where it could hold addresses with tokens."""
    from huggingface_hub import errors

    name = f"{repository} (revision {revision})" if revision else repository
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or (
        status in (401, 403) and not isinstance(error, errors.RepositoryNotFoundError)
    ):
        todo = f"accept its terms at https://huggingface.co/{repository} and give a token: `hf auth login`, or HF_TOKEN"
        return UserError(f"model {name}: the Hub refuses access; {todo}", param="model")
    if isinstance(error, errors.RepositoryNotFoundError):
        todo = "check the spelling; for a private one give a token: `hf auth login`, or HF_TOKEN"
        return UserError(f"model {name}: no such repository on the Hub, and no such path here; {todo}", param="model")
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(
            f"model {name}: the repository has no such revision; give a branch, tag or commit of it", param="revision"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        if offline or _hub_is_offline():
            todo = "fetch it once with `homenode generate` where the network is reached, without HF_HUB_OFFLINE, or give a local path"
            return UserError(
                f"model {name}: not (completely) in the Hub cache of this machine, and offline; {todo}", param="model"
            )
        todo = "check the connection and any proxy, or give a local path"
        return UserError(
            f"model {name}: the Hub cannot be reached, and the cache of this machine does not hold it; {todo}",
            param="model",
        )
    if isinstance(error, errors.HfHubHTTPError):
        return UserError(
            f"model {name}: the Hub answered with HTTP status {status}; try again later, or give a local path",
            param="model",
        )
    if isinstance(error, ValueError) and "too large" in str(error):
        todo = "`pip install hf_xet`, which huggingface_hub fetches such files with"
        return UserError(
            f"model {name}: it has a file of more than 50 GB, too large for a plain download; {todo}", param="model"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        todo = "make room, or set HF_HOME to a folder on another disk; files that came whole are kept"
        return CapacityError(f"model {name}: the disk of the cache is full ({error.strerror}); {todo}", param="model")
    if isinstance(error, ValueError):
        return UserError(f"model {name}: not a name the Hub accepts; {_EXPLAIN}", param="model")
    if (
        isinstance(error, OSError) and error.errno is not None
    ):  # the errors of HTTP clients are OSErrors too, but without a number
        return HostError(
            f"model {name}: fetching failed: {error}; check free space and permissions of the cache folder"
        )
    return UserError(
        f"model {name}: fetching failed ({type(error).__name__}: {error}); check the connection and any proxy",
        param="model",
    )


def _hub_is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _check_folder(folder: Path, repository: str) -> Path:
    if (folder / "config.json").exists() and any(folder.glob("*.safetensors")):
        return folder
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise UserError(
            f"model {repository}: an adapter (LoRA), which changes another model: merge it into that, and give the result",
            param="model",
        )
    if names := _gguf_names(folder, lambda name: True):
        raise UserError(
            f"model {repository} holds GGUF files: pick one, such as {repository}:{names[0]}", param="model"
        )
    todo = f"if it holds GGUF files, pick one: {repository}:Q4_K_M, or {repository}:model.gguf"
    raise UserError(
        f"model {repository}: wanted config.json and .safetensors files, which it does not have; {todo}", param="model"
    )


def _pick_gguf(folder: Path, repository: str, pick: str) -> Path:
    if pick.endswith(".gguf"):
        if (folder / pick).exists() and ".." not in Path(pick).parts:
            return folder / pick
        raise UserError(
            f"model {repository}: it has no file {pick!r} (or it is not in the cache, if offline)", param="model"
        )
    tag = re.compile(rf"(?:^|[-._/]){re.escape(pick)}(?:[-./]|$)", re.IGNORECASE)  # Q4_K is not Q4_K_M
    names = _gguf_names(folder, lambda name: tag.search(name) is not None)
    if not names:
        todo = "look at its files on the Hub and give the quantisation or the name of one"
        raise UserError(
            f"model {repository}: none of its GGUF files is a {pick} (or it is not in the cache, if offline); {todo}",
            param="model",
        )
    if len(names) > 1:
        raise UserError(
            f"model {repository}: several files are {pick}: {', '.join(names[:10])}; give the name of one",
            param="model",
        )
    return folder / names[0]


def _gguf_names(folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """GGUF models below `folder` by relative name, each split one by its first part."""
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf"))
    return [name for name in names if wanted(name) and not name.startswith("mmproj") and _is_first(name)]


def _is_first(name: str) -> bool:
    return not _SHARD.search(name) or "-00001-of-" in name
