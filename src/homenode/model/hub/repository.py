"""A Hub repository as the Hub describes it: its commit, its files with their sizes, what it says of a GGUF model. Only
`describe` asks the network.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WEIGHTS = (".safetensors", ".gguf")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. `size` in bytes; `blob` is the name of its content in the cache."""

    name: str
    size: int
    blob: str = ""

    @property
    def is_weights(self) -> bool:
        """Return whether it holds weights, and not what is read before them."""
        return self.name.endswith(_WEIGHTS)


@dataclass(frozen=True)
class HubRepository:
    """A repository at one commit. `gguf`: what the Hub has read of its GGUF files' metadata, such as their
    architecture.
    """

    name: str
    commit: str
    files: tuple[HubFile, ...]
    gguf: dict[str, Any] = field(default_factory=dict)

    def matching(self, wanted: Sequence[str], unwanted: Sequence[str] = ()) -> list[HubFile]:
        """The files of these patterns, as of a shell."""
        return [file for file in self.files if _matches(file.name, wanted) and not _matches(file.name, unwanted)]

    def missing(self, cache: Path, names: Sequence[str]) -> list[HubFile]:
        """Return those of its files with these names whose content is not in the `cache` (the folder of all
        repositories).
        """
        root = cache / f"models--{self.name.replace('/', '--')}"
        return [
            file
            for file in self.files
            if file.name in names
            and not (root / "snapshots" / self.commit / file.name).exists()
            and not (file.blob and (root / "blobs" / file.blob).exists())
        ]


def describe(repository: str, revision: str | None, token: str | None) -> HubRepository:
    """Ask the Hub (one request). Raises what huggingface_hub and its HTTP client raise."""
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(
        repository, revision=revision, token=token, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    files = tuple(HubFile(file.rfilename, max(0, file.size or 0), _blob_of(file)) for file in info.siblings or ())
    gguf = getattr(info, "gguf", None)
    return HubRepository(repository, info.sha or "", files, gguf if isinstance(gguf, dict) else {})


def cache_folder(cache_dir: Path | None) -> Path:
    """The folder in which the Hub's library keeps all repositories."""
    from huggingface_hub import constants

    return Path(cache_dir or constants.HF_HUB_CACHE).expanduser()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _blob_of(file: Any) -> str:
    kept = file.lfs.get("sha256") if file.lfs else file.blob_id
    return kept if isinstance(kept, str) and kept.isalnum() else ""
