"""Facts that NVML knows of NVIDIA GPUs, through the optional package nvidia-ml-py: for a live host whose nvidia-smi is
missing or says too little.

Source: NVML API reference (nvmlDeviceGetNumaNodeId, nvmlDeviceGetCpuAffinity).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from homenode.cpuset import parse_cpu_list
from homenode.errors import UserError
from homenode.host.topology.accelerators.cells import CPU_LIMIT, node_of_cpus, pci_address
from homenode.host.topology.host import Accelerator, Node
from homenode.host.topology.source import Source

_WORD = 64  # bits in one element of NVML's CPU mask, an unsigned long
_MOST_GPUS = 1024


def fill(chips: Sequence[Accelerator], source: Source, nodes: Sequence[Node]) -> list[Accelerator]:
    """`chips` with NVML's answers where they had none, and only those GPUs that NVML may use; unchanged where there is
    no NVML or no driver."""
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, a broken installation, or no driver to talk to: all the same to us
        return list(chips)
    try:
        known = {chip.address: chip for chip in chips}
        count = min(_ask(nvml.nvmlDeviceGetCount) or 0, _MOST_GPUS)
        filled = [_gpu(nvml, index, known, source, nodes) for index in range(count)]
    finally:
        _ask(nvml.nvmlShutdown)
    return [chip for chip in filled if chip is not None] or list(chips)


def _gpu(
    nvml: Any, index: int, known: dict[str | None, Accelerator], source: Source, nodes: Sequence[Node]
) -> Accelerator | None:
    handle = _ask(nvml.nvmlDeviceGetHandleByIndex, index)
    address = pci_address(_text(getattr(_ask(nvml.nvmlDeviceGetPciInfo, handle), "busId", "")))
    if handle is None or address is None:
        return None
    had = known.get(address) or Accelerator("cuda", index, "", address=address)
    local = had.local_cpus or _affinity(nvml, handle, source)
    own = _ask(nvml.nvmlDeviceGetNumaNodeId, handle) if hasattr(nvml, "nvmlDeviceGetNumaNodeId") else None
    node = next((one for one in nodes if one.id == own), None)
    near = node.id if node and node.cpus else node_of_cpus(local, nodes)
    processes = {process.pid for process in _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()}
    return replace(
        had,
        id=index,
        name=_text(_ask(nvml.nvmlDeviceGetName, handle)) or had.name,
        uuid=had.uuid or _text(_ask(nvml.nvmlDeviceGetUUID, handle)),
        local_cpus=local,
        node=near if had.node is None else had.node,
        memory_node=node.id if node and not node.cpus and had.memory_node is None else had.memory_node,
        processes=had.processes or tuple(sorted(processes)),
    )


def _affinity(nvml: Any, handle: Any, source: Source) -> tuple[int, ...]:
    """CPUs of NVML's mask, which is as long as the largest possible CPU id asks for: a count of CPUs would cut off
    sparse ids."""
    try:
        possible = parse_cpu_list(source.read("/sys/devices/system/cpu/possible") or "0")
    except UserError:
        possible = (CPU_LIMIT - 1,)
    mask = _ask(nvml.nvmlDeviceGetCpuAffinity, handle, max(possible, default=0) // _WORD + 1) or ()
    return tuple(word * _WORD + bit for word, bits in enumerate(mask) for bit in range(_WORD) if int(bits) >> bit & 1)


def _ask(call: Callable[..., Any], *words: Any) -> Any:
    """The answer, or None: every question may be unsupported on some GPU, and each release of NVML has errors of its
    own."""
    try:
        return call(*words)
    except Exception:  # NVMLError and its subclasses, made when the package is imported
        return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
