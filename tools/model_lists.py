"""The tables in docs/models.md of what people run, and whether it loads; `tools.models_table` writes them. The lists
are in docs/model-lists.json, a model each line: its name, its class in a folder, and `general.architecture` in GGUF
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from homenode.model.architectures.registry import ARCHITECTURES, gguf_names
from homenode.model.checkpoint.wrappers import ANY_TEXT, BY_VERSION

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "docs" / "model-lists.json"
CLASSES = frozenset((*ANY_TEXT, *BY_VERSION)).union(
    *((*each.folder.class_names, *each.folder.picture_classes) for each in ARCHITECTURES.values())
)
GGUF_NAMES = frozenset(gguf_names())


@dataclass(frozen=True)
class ListedModel:
    """A model of a list. `gguf`: its `general.architecture`; `of_folders`: whether the list has it as a folder."""

    name: str
    class_name: str
    gguf: str
    of_folders: bool

    @property
    def loads(self) -> bool:
        """Whether its architecture is one that homenode has, in the form that the list has it in."""
        return self.class_name in CLASSES if self.of_folders else self.gguf in GGUF_NAMES


def read_lists() -> dict[str, list[ListedModel]]:
    """The models of every list, by the list's name."""
    lists = json.loads(LISTS.read_text(encoding="utf-8"))
    return {
        title: [ListedModel(*model, of_folders=each["form"] == "folder") for model in each["models"]]
        for title, each in lists.items()
    }


def tables() -> str:
    """All tables as Markdown, one below the other."""
    return "\n\n".join("\n".join(_lines(title, models)) for title, models in read_lists().items())


def _lines(title: str, models: list[ListedModel]) -> Iterator[str]:
    yield f"**{title}**: {sum(model.loads for model in models)} of {len(models)} load."
    yield ""
    yield "| models | class | GGUF `general.architecture` | loads |"
    yield "|---|---|---|---|"

    def kind(model: ListedModel) -> tuple[str, str]:
        return model.class_name, model.gguf

    for (class_name, gguf), alike in groupby(sorted(models, key=kind), key=kind):
        same = list(alike)
        yield (
            f"| {', '.join(model.name for model in same)} | {class_name} | {gguf} | "
            f"{'yes' if same[0].loads else 'no'} |"
        )
