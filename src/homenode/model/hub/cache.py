"""The models that the Hub's cache of this machine holds. Nothing asks the network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.errors import HostError, UserError
from homenode.model.formats.mmproj_names import is_mmproj
from homenode.model.hub.repository import cache_folder

_PART = re.compile(r"-(?P<number>[0-9]{5})-of-[0-9]{5}\.gguf")
_PREFIX = "models--"


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache. `name`: what `homenode serve` takes. `size` in bytes; `last_used` in seconds since 1970,
    None where it is not known.

    `format`: safetensors, GGUF, or incomplete, of which `path` is the repository's folder.
    """

    name: str
    repository: str
    path: Path
    size: int
    format: str
    last_used: float | None = None


def cached_models(cache_dir: Path | None = None) -> list[CachedModel]:
    """Every model of the cache, by name: a folder as one, and each GGUF model of a repository. HostError where the
    cache cannot be read.
    """
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    cache = cache_folder(cache_dir)
    try:
        scanned = scan_cache_dir(cache)
        repositories = [repository for repository in scanned.repos if repository.repo_type == "model"]
        found = [model for repository in repositories for model in _models_of(repository)]
        seen = {repository.repo_path.name for repository in repositories}
        for folder in cache.glob(f"{_PREFIX}*"):  # of a fetch that ended early the library has nothing to tell
            if folder.name not in seen and folder.is_dir():
                name = folder.name.removeprefix(_PREFIX).replace("--", "/")
                size = sum(file.stat().st_size for file in folder.glob("blobs/*") if file.is_file())
                found.append(CachedModel(name, name, folder, size, "incomplete"))
    except CacheNotFound:
        return []
    except (OSError, ValueError) as error:
        raise HostError(f"the Hub cache {cache} cannot be read: {error}; check HF_HOME and its permissions") from error
    return sorted(found, key=lambda model: model.name)


def remove_repository(repository: str, cache_dir: Path | None = None) -> int:
    """Remove all of a repository from the cache; returns its bytes. UserError where the cache does not hold it,
    HostError where it cannot be removed.
    """
    held = [model for model in cached_models(cache_dir) if model.repository == repository]
    if not held:
        raise UserError(
            f"model {repository}: not in the Hub cache {cache_folder(cache_dir)}; `homenode models` lists what it "
            f"holds",
            param="name",
        )
    cache, name = cache_folder(cache_dir), _PREFIX + repository.replace("/", "--")
    try:
        shutil.rmtree(cache / name)
        shutil.rmtree(cache / ".locks" / name, ignore_errors=True)
    except OSError as error:
        raise HostError(f"model {repository}: cannot be removed from {cache}: {error}") from error
    return sum(model.size for model in held)


def _models_of(repository: Any) -> Iterable[CachedModel]:
    """Return the models of its current revision: that of the branch main, else the newest."""
    revision = max(repository.revisions, key=lambda r: ("main" in r.refs, r.last_modified), default=None)
    if revision is None:
        yield CachedModel(repository.repo_id, repository.repo_id, repository.repo_path, 0, "incomplete")
        return
    files = {file.file_path.relative_to(revision.snapshot_path).as_posix(): file for file in revision.files}
    if files.keys() & {"config.json", "params.json"} and any(name.endswith(".safetensors") for name in files):
        size = sum(file.size_on_disk for name, file in files.items() if not name.endswith(".gguf"))
        yield CachedModel(
            repository.repo_id,
            repository.repo_id,
            revision.snapshot_path,
            size,
            "safetensors",
            repository.last_accessed,
        )
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        if name.endswith(".gguf") and not is_mmproj(Path(name).name):
            models.setdefault(_PART.sub(".gguf", name), []).append(name)
    for names in models.values():
        parts = [files[name] for name in names]
        yield CachedModel(
            f"{repository.repo_id}:{names[0]}", repository.repo_id, revision.snapshot_path / names[0],
            sum(part.size_on_disk for part in parts), "GGUF", max(part.blob_last_accessed for part in parts),
        )  # fmt: skip
    if not models and not any(name.endswith(".safetensors") for name in files):
        yield CachedModel(
            repository.repo_id, repository.repo_id, repository.repo_path, repository.size_on_disk, "incomplete"
        )
