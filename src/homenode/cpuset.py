"""CPU lists as the Linux kernel writes them: `0-3,8,10-11` (cpuset(7), "List format")."""

from __future__ import annotations

from collections.abc import Iterable

from homenode.errors import UserError

_LIMIT = 1 << 16  # no machine has more logical CPUs; a larger number is a typing error, and a range of it would eat memory


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """CPU numbers in `text`, ascending and without repeats; an empty text is an empty set. Raises UserError when it is no CPU list."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"not a CPU list: {text!r}; write numbers and ranges, such as 0-3,8")
        low, high = int(first), int(last or first)
        if high < low or high >= _LIMIT:
            raise UserError(f"not a CPU list: {text!r}; the range {part.strip()} is empty or beyond CPU {_LIMIT - 1}")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest list text for `cpus`: (0, 1, 2, 8) -> '0-2,8'."""
    parts: list[str] = []
    run: list[int] = []
    for cpu in [*sorted(set(cpus)), None]:
        if run and (cpu is None or cpu != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if cpu is not None:
            run.append(cpu)
    return ",".join(parts)
