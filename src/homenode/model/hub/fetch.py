"""Fetching a model's files into the Hub cache, once it is known that it can be run and kept here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from homenode.errors import HomenodeError, UserError
from homenode.model.checkpoint.folder import CONFIG, spec_without_weights
from homenode.model.checkpoint.mistral_params import MISTRAL_WEIGHTS, PARAMS, has_mistral_form
from homenode.model.formats.mmproj_names import MMPROJ_PATTERN
from homenode.model.hub import refusals
from homenode.model.hub.candidate import Candidate, Choice, several_models
from homenode.model.hub.failures import explain_failure, hub_is_offline
from homenode.model.hub.gguf_head import read_hub_spec
from homenode.model.hub.gguf_names import gguf_models, parts_of, parts_pattern, pick_gguf
from homenode.model.hub.progress import progress_lines
from homenode.model.hub.repository import HubRepository, cache_folder, describe
from homenode.model.spec import ModelSpec

# Pickled weights (.bin, .pth) are left out: they can run code, and we do not read them.
_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "tokenizer.model.v*", "*.txt")
_NOT = ("*/*", "*.index.fp32.json")
_MISTRAL = "consolidated*"  # the model once more where the repository has config.json


@dataclass(frozen=True)
class HubSource:
    """The files that are fetched, and how. `pick`: a GGUF file, or a quantisation that names one. `token`: None for the
    one that huggingface_hub finds. `offline`: only the cache is looked at. `progress`: how far it is is told on stderr.
    """

    repository: str
    pick: str | None = None
    revision: str | None = None
    token: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    progress: bool = True

    def fetch(self, choice: Choice) -> Path:
        """The folder with the model, or its GGUF file. Where it is not in the cache, `choice` is asked before its
        weights are fetched.

        Raises UserError, CapacityError and HostError, each saying what to do, and what `choice` raises.
        """
        try:
            return self._fetch(choice)
        except HomenodeError:
            raise
        except (
            Exception
        ) as error:  # the library lets those of its HTTP client through: no narrower base covers what a fetch can raise
            raise explain_failure(error, self.repository, self.revision, self.offline) from error

    def _fetch(self, choice: Choice) -> Path:
        described = None if self.offline or hub_is_offline() else self._describe()
        if described is None:
            return self._found(self._download(*_patterns(self.pick, has_config=True)))
        candidates = self._candidates(described)
        whole = [c for c in candidates if not described.missing(cache_folder(self.cache_dir), _names(c))]
        if whole or not candidates:
            taken = max(whole, key=lambda candidate: candidate.size, default=None)
            patterns = _patterns(taken.file if taken else self.pick, has_config=_has_config(described))
            return self._found(self._download(*patterns), taken)
        taken = choice(self._judged(described, candidates))
        return self._found(self._download_shown(described, taken), taken)

    def _describe(self) -> HubRepository | None:
        """None where the Hub does not say: fetching meets the same fault, and explains it or finds the files in the
        cache.
        """
        try:
            return describe(self.repository, self.revision, self.token)
        except Exception:  # of the HTTP client, too
            return None

    def _candidates(self, described: HubRepository) -> list[Candidate]:
        """The models that are meant; none where the repository has none that homenode reads."""
        names = [file.name for file in described.files]
        if self.pick is None:
            patterns = _patterns(None, has_config=_has_config(described))
            weights = tuple(file for file in described.matching(*patterns) if file.is_weights)
            if weights or CONFIG in names:
                return [Candidate(self.repository, None, weights)] if weights else []
            models = gguf_models(names)
        else:
            models = [pick_gguf(self.repository, names, self.pick)]
        sizes = {file.name: file for file in described.files}
        return [
            Candidate(self.repository, name, tuple(sizes[part] for part in parts_of(name, names))) for name in models
        ]

    def _judged(self, described: HubRepository, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """The same with their figures, and with what the disk has no room for. UserError where the disk has room for
        none, or none is of an architecture that homenode runs.
        """
        cache = cache_folder(self.cache_dir)
        candidates = [
            replace(c, problem=refusals.disk_problem(described.missing(cache, _names(c)), cache)) for c in candidates
        ]
        if candidates[0].file is not None:
            refusals.refuse_gguf_architecture(described)
        if all(candidate.problem for candidate in candidates):
            raise refusals.no_disk(min(candidates, key=lambda candidate: candidate.size))
        spec = self._spec(described, next(candidate for candidate in candidates if not candidate.problem))
        return [replace(candidate, spec=spec) for candidate in candidates]

    def _spec(self, described: HubRepository, candidate: Candidate) -> ModelSpec | None:
        """The figures of a model, which those of the same repository share."""
        if candidate.file is not None:
            return read_hub_spec(described, candidate.weights[0], self.token)
        if not any(file.name in (CONFIG, PARAMS) for file in described.files):
            return None
        folder = self._download([pattern for pattern in _FILES if "safetensors" not in pattern], [*_NOT, _MISTRAL])
        try:
            return spec_without_weights(folder)
        except UserError as error:
            error.message = f"model {self.repository}: {error.message}"
            raise

    def _download_shown(self, described: HubRepository, taken: Candidate) -> Path:
        patterns = _patterns(taken.file, has_config=_has_config(described))
        if not self.progress:
            return self._download(*patterns)
        cache = cache_folder(self.cache_dir)
        with progress_lines(self.repository, described.missing(cache, _names(taken)), cache):
            return self._download(*patterns)

    def _download(self, wanted: list[str], unwanted: list[str]) -> Path:
        import huggingface_hub  # slow to import, and most starts name a local model

        found = huggingface_hub.snapshot_download(
            self.repository,
            revision=self.revision,
            token=self.token,
            cache_dir=self.cache_dir,
            local_files_only=self.offline,
            allow_patterns=wanted,
            ignore_patterns=unwanted,
            tqdm_class=_silent_bar(),
        )
        return Path(str(found))

    def _found(self, folder: Path, taken: Candidate | None = None) -> Path:
        """The model in the folder of the repository."""
        if taken is not None and taken.file is not None:
            return folder / taken.file
        names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf"))
        if self.pick is not None:
            return folder / pick_gguf(self.repository, names, self.pick)
        if (folder / CONFIG).exists() and any(folder.glob("*.safetensors")):
            return folder
        if has_mistral_form(folder) and any(folder.glob(MISTRAL_WEIGHTS)):
            return folder
        if (folder / "adapter_config.json").exists() and not (folder / CONFIG).exists():
            raise UserError(
                f"model {self.repository}: an adapter (LoRA), which changes another model: merge it into that, and "
                f"give the result",
                param="model",
            )
        if models := gguf_models(names):
            if len(models) > 1:
                raise several_models(self.repository, models)
            return folder / models[0]
        todo = f"if it holds GGUF files, pick one: {self.repository}:Q4_K_M, or {self.repository}:model.gguf"
        raise UserError(
            f"model {self.repository}: wanted config.json and .safetensors files, which it does not have; {todo}",
            param="model",
        )


def _has_config(described: HubRepository) -> bool:
    """Return whether a repository's model is in the form that is read first, not in Mistral's own."""
    names = {file.name for file in described.files}
    return CONFIG in names or PARAMS not in names


def _patterns(pick: str | None, *, has_config: bool) -> tuple[list[str], list[str]]:
    """Return what to fetch and what to leave out. `has_config`: see `_has_config`."""
    if pick is None:
        return list(_FILES), [*_NOT, *([_MISTRAL] if has_config else [])]
    if pick.endswith(".gguf"):
        return [parts_pattern(pick)], []
    spellings = dict.fromkeys((pick, pick.upper(), pick.lower()))
    return [f"*{spelling}*.gguf" for spelling in spellings], [MMPROJ_PATTERN]


def _names(candidate: Candidate) -> list[str]:
    return [file.name for file in candidate.weights]


def _silent_bar() -> type[Any]:
    """A class of progress bars that show nothing, as huggingface_hub takes one."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class NullProgress(tqdm):  # type: ignore[misc]
        """A progress bar that shows nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)  # the Hub library's own bars know it, tqdm does not
            super().__init__(*args, **kwargs | {"disable": True})

    return NullProgress
