"""A GGUF model of one file or several (`name-00001-of-00005.gguf`): which files belong to it, and their
headers as one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.errors import UserError
from homenode.model.formats.bounded_files import damaged, quoted
from homenode.model.formats.gguf import GgufFile, GgufTensor, read_gguf
from homenode.model.formats.mmproj_names import is_mmproj
from homenode.units import format_count

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


@dataclass(frozen=True)
class GgufSet:
    """The merged headers. Metadata is the first file's: the others only repeat the counts of the split."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, tuple[Path, GgufTensor]]


def find_gguf(folder: Path) -> Path:
    """The (first) file of the only GGUF model in `folder`; UserError when there is none or more than one.

    See `is_mmproj` for those that are none.
    """
    models = sorted({first_shard(file) for file in folder.glob("*.gguf") if not is_mmproj(file.name)})
    if len(models) != 1:
        names = ", ".join(model.name for model in models[:20]) or "none"
        raise UserError(f"{folder}: GGUF models seen: {names}; wanted exactly one: give the path of the file to use")
    return models[0]


def find_mmproj(model: Path, asked: str | None) -> Path | None:
    """The file that has the tower of the GGUF model at `model`: `asked`, or one beside it that `is_mmproj`, of several
    that whose name begins most like the model's, and of these the largest. None where there is none, or `asked` is
    "off".
    """
    if asked == "off":
        return None
    if asked is not None:
        if not Path(asked).is_file():
            raise UserError(f"--mmproj {asked}: no such file; give a GGUF file, or off", param="mmproj")
        return Path(asked)
    found = [each for each in model.parent.glob("*.gguf") if is_mmproj(each.name) and each.is_file()]
    return max(found, key=lambda each: (_alike(model, each), each.stat().st_size, each.name), default=None)


def _alike(model: Path, file: Path) -> int:
    """How many characters the names have in common at the beginning, without what says that it is of pictures."""
    name = re.sub(r"[-_.]?mmproj[-_.]?", "", file.name.lower())
    pairs = zip(model.name.lower(), name, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(model.name), len(name)))


def first_shard(path: Path) -> Path:
    """The first file of the split that `path` belongs to by its name; `path` itself when it is no part of one."""
    match = _SHARD.fullmatch(path.name)
    return path.with_name(f"{match['stem']}-00001-of-{match['count']}.gguf") if match else path


def read_gguf_set(path: Path) -> GgufSet:
    """Read the headers of the model that the file `path` is, or is a part of.

    Raises CheckpointError when a part is missing, repeats a tensor, belongs elsewhere, or the tensors are not as many
    as promised.
    """
    first = read_gguf(path)
    count = _split_value(first, "split.count", 1)
    match = _SHARD.fullmatch(path.name)
    if count <= 1:
        return GgufSet(path, first.metadata, {name: (path, tensor) for name, tensor in first.tensors.items()})
    if not match or int(match["count"]) != count:
        wanted = f"a file name that ends in -00001-of-{count:05}.gguf, as split.count is {count}"
        raise damaged(path, "file name", seen=path.name, wanted=wanted, do="rename the parts back")
    parts = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        seen = f"{count - len(missing)} of {format_count(count, 'part')}, without {', '.join(missing[:5])}"
        raise damaged(path, "split model", seen=seen, wanted="all parts in one folder", do="fetch the missing parts")
    return _merge([first if part == path else read_gguf(part) for part in parts], count)


def _merge(files: list[GgufFile], count: int) -> GgufSet:
    tensors: dict[str, tuple[Path, GgufTensor]] = {}
    for number, file in enumerate(files):
        for key, wanted in (("split.count", count), ("split.no", number)):
            if (seen := _split_value(file, key, -1)) != wanted:
                raise damaged(file.path, key, seen=seen, wanted=str(wanted))
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise damaged(
                    file.path,
                    f"tensor {name}",
                    seen=f"it also in {tensors[name][0].name}",
                    wanted="every tensor in one part",
                )
            tensors[name] = (file.path, tensor)
    promised = _split_value(files[0], "split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise damaged(
            files[0].path,
            "split.tensors.count",
            seen=f"{format_count(len(tensors), 'tensor')} in all parts",
            wanted=str(promised),
        )
    return GgufSet(files[0].path, files[0].metadata, tensors)


def _split_value(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 2**31:
        raise damaged(file.path, key, seen=quoted(value), wanted="a whole number")
    return value
