"""The architectures there are: every module of this folder that has an `ARCHITECTURE`. A new one is a file like its
neighbours. A module is imported when its architecture is asked for: a checkpoint's names are looked for in the texts of
the modules, where each stands in double quotes, so that a start imports the architecture of its model only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from pathlib import Path

from homenode.errors import UnsupportedError
from homenode.model import architectures
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.prediction import predicting
from homenode.model.spec import ModelSpec

_DESCRIBES = re.compile(r"^ARCHITECTURE = ", re.MULTILINE)
_LONGEST = 100  # letters of a name that are compared with others
# What families need that people ask for and that are not run, by their classes and `general.architecture`.
_MAMBA_1 = "its layers keep states as Mamba 1 does, with a decay for each channel and state, which homenode lacks"
_LACKING: Mapping[str, str] = {
    **dict.fromkeys("JambaForCausalLM jamba MambaForCausalLM FalconMambaForCausalLM mamba".split(), _MAMBA_1),
    **dict.fromkeys(
        "MiniMaxForCausalLM MiniMaxText01ForCausalLM minimax-01".split(),
        "it needs lightning attention, which homenode lacks",
    ),
    **dict.fromkeys(
        "BaichuanForCausalLM BaiChuanForCausalLM baichuan".split(),
        "Baichuan 2 divides the rows of its output matrix by their lengths, which neither homenode nor GGUF files do",
    ),
    "PaliGemmaForConditionalGeneration": "the tokens of its prompts see one another in both directions",
    "UltravoxModel": "its folder has no text model but names another one's (text_model_id), which runs by itself",
    "VoxtralRealtimeForConditionalGeneration": "its layers change with how far it writes behind what it hears",
    "WhisperForConditionalGeneration": "it writes down what it hears, and has no text model that runs by itself",
    "UnlimitedOCRForCausalLM": "its layers see a window and, besides, the whole prompt",
    "UnlimitedOcrForConditionalGeneration": "its layers see a window and, besides, the whole prompt",
    **dict.fromkeys(
        "CogVLMForCausalLM CogAgentForCausalLM".split(),
        "its layers have other matrices for pictures than for text, under names of their own",
    ),
}


class Architectures(Mapping[str, Architecture]):
    """The architectures in these folders by name, in the order of names; each is imported when it is asked for."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The texts of the modules that describe an architecture, by name."""
        files = sorted((file for folder in self._folders for file in Path(folder).glob("*.py")), key=lambda it: it.stem)
        texts = {file.stem: file.read_text(encoding="utf-8") for file in files}
        return {name: text for name, text in texts.items() if _DESCRIBES.search(text)}

    def __getitem__(self, name: str) -> Architecture:
        if name not in self._texts:
            raise KeyError(name)
        described: Architecture = import_module(f"{architectures.__name__}.{name}").ARCHITECTURE
        return described

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def that_name(self, word: str) -> tuple[Architecture, ...]:
        """Return those whose modules have `word` in double quotes: all that a checkpoint may mean by it, and perhaps
        others.
        """
        return tuple(self[name] for name, text in self._texts.items() if f'"{word}"' in text)


ARCHITECTURES = Architectures(architectures.__path__)


def with_class(name: str) -> Architecture | None:
    """The architecture whose class in transformers is called so, or was."""
    return next((each for each in ARCHITECTURES.that_name(name) if name in each.folder.class_names), None)


def with_model_type(name: str) -> Architecture | None:
    """The architecture that a config.json calls so where it names no class."""
    named = (each for each in ARCHITECTURES.that_name(name) if name in each.folder.model_types)
    return ARCHITECTURES.get(name) or next(named, None)


def with_picture_class(name: str) -> Architecture | None:
    """The architecture that the text of such a model, which sees or hears, is of."""
    return next((each for each in ARCHITECTURES.that_name(name) if name in each.folder.picture_classes), None)


def with_gguf_name(name: str) -> tuple[Architecture, ...]:
    """The architectures whose GGUF files may have this `general.architecture`."""
    return tuple(each for each in ARCHITECTURES.that_name(name) if name in each.gguf.all_names)


def class_names() -> tuple[str, ...]:
    """The classes of all architectures. For messages: all architectures are imported."""
    return tuple(name for each in ARCHITECTURES.values() for name in each.folder.class_names)


def gguf_names() -> tuple[str, ...]:
    """Every `general.architecture` that a file may have. For messages: all architectures are imported."""
    return tuple(dict.fromkeys(name for each in ARCHITECTURES.values() for name in each.gguf.all_names))


def instead_of(seen: str, names: Sequence[str], files: str = "") -> str:
    """Say, for messages, why one that people ask for does not run, and what does: how many there are, and which of
    these names look most like the one seen. `files`: what they are the architectures of.
    """
    alike = get_close_matches(seen[:_LONGEST], names, n=3, cutoff=0.4)
    like = f", such as {', '.join(alike)}" if alike else ""
    lacking = f"{_LACKING[seen]}; " if seen in _LACKING else ""
    return f"{lacking}homenode runs {files}{len(names)} others{like} (docs/models.md has all)"


def architecture_of(name: str) -> Architecture:
    """The architecture `ModelSpec.architecture` names; UnsupportedError lists the known ones."""
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"architecture {name!r} is not supported; known: {', '.join(ARCHITECTURES)}", architecture=name
        )
    return ARCHITECTURES[name]


def architecture_for(spec: ModelSpec) -> Architecture:
    """The architecture of a model with these figures, or of a block of one that predicts."""
    found = architecture_of(spec.architecture)
    return found if spec.prediction is None else predicting(found)
