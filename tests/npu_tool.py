"""A stand-in for npu-smi: a shell script that prints what the tool prints for the NPUs of a machine that has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.npu_hosts import Chip, map_text, process_text, topo_text


def install_npu_smi(folder: Path, chips: Sequence[Chip], addresses: Mapping[int, str], style: str = "A2") -> Path:
    """Write the script into `folder`, which is to be on PATH. `addresses`: of the PCI function by logical number, as
    `npu-smi info -t board` tells it. The file.
    """
    boards = "".join(
        f'"info -t board -i {chip.npu} -c {chip.chip}") echo "  PCIe Bus Info : {addresses[chip.logic].upper()}" ;;\n'
        for chip in chips
        if chip.logic in addresses
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("map", map_text(style, chips)),
        ("processes", process_text(style, chips)),
        ("topo", topo_text(style, chips)),
    ):
        (folder / name).write_text(text)
    tool = folder / "npu-smi"
    tool.write_text(
        f"""#!/bin/sh
case "$*" in
"info -m") cat '{folder}/map' ;;
"info") cat '{folder}/processes' ;;
"info -t topo") cat '{folder}/topo' ;;
{boards}*) echo "no such query: $*" >&2; exit 9 ;;
esac
"""
    )
    tool.chmod(0o755)
    return tool
