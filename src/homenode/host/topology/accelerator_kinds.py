"""The kinds of accelerators, one for each vendor: what plans, bindings and engines have to know of them. Pure.

The order is that in which plans are made: NPUs before GPUs, as hosts hardly ever have both. Who reads a kind's chips is
`accelerators/read.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class AcceleratorKind:
    """A vendor's accelerators.

    `torch`: torch's word for such a device. `group`: which settings plans for it read (`plan/settings_read.py`).
    `variables`: those that say which devices a process sees; each counts within what the one before it left.
    `is_listed`: a device that is named has to be one of those that the tool lists. `trouble`: how codes of errors begin
    that say that the vendor's tool cannot be understood; "" where its absence is no error. `tool`: the tool's name.
    `has_own_strategies`: the vendor documents how ranks are bound (`plan/policies/ascend.py`), --numa-bind included.
    `has_driver_threads`: threads of the driver have CPUs of their own (roles acl and release). `interrupts`: names of
    those that are routed one by one; without, all of a device go to the CPUs of the role irq.
    """

    name: str
    torch: str
    group: Literal["gpu", "npu"]
    variables: tuple[str, ...]
    is_listed: bool = True
    trouble: str = ""
    tool: str = ""
    has_own_strategies: bool = False
    has_driver_threads: bool = False
    interrupts: tuple[str, ...] = ()


KINDS: Final = {
    kind.name: kind
    for kind in (
        AcceleratorKind(
            "npu",
            torch="npu",
            group="npu",
            variables=("ASCEND_RT_VISIBLE_DEVICES",),
            is_listed=False,
            trouble="npu_",
            tool="npu-smi",
            has_own_strategies=True,
            has_driver_threads=True,
            interrupts=("sq_send_trigger_irq", "cq_update_irq"),
        ),
        AcceleratorKind("cuda", torch="cuda", group="gpu", variables=("CUDA_VISIBLE_DEVICES",)),
        AcceleratorKind(
            "rocm",
            torch="cuda",
            group="gpu",
            variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ),
    )
}
