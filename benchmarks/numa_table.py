"""The tables of docs/numa.md, made of docs/numa-published.json by the cost model: `python -m benchmarks.numa_table` (a
test holds the page up to date)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.numa_drawing import DRAWING, draw
from benchmarks.numa_fit import held_out
from benchmarks.numa_published import Published, Row, always, direction, error_of_gain, error_of_ratio, score
from benchmarks.table import replaced
from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed
from homenode.host.plan.numa.weight_cost import ModelWork, choose_policy
from homenode.numa_policy import NumaPolicy

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numa.md"

# Two sockets of a server as examples: 100 GB/s and 2.4 TOPS of bytes each, links of 40 GB/s, barriers of 0.8 and 2 us.
_EXAMPLE = MachineSpeed(
    (NodeSpeed(0, 16, 100, 2400), NodeSpeed(1, 16, 100, 2400)),
    {(0, 1): 40, (1, 0): 40},
    barrier_us=0.8,
    barrier_across_us=2.0,
)
_GIB = 1 << 30
_MODELS = (
    ("0.5B in 8 bits, 0.5 GB", ModelWork(530 * 10**6, 1.0e9, 12288, 24, 60_000)),
    ("8B in 4 bits, 5 GB", ModelWork(5 * 10**9, 16.1e9, 131072, 32, 200_000)),
    ("32B in 6 bits, 27 GB", ModelWork(27 * 10**9, 65.5e9, 262144, 64, 320_000)),
)
_LOADS = ((1, 1024), (16, 1024))


def page(text: str, published: Published) -> str:
    """The page with its tables made anew."""
    parts = {
        "examples": examples_text(),
        "summary": summary_text(published),
        "rows": rows_text(published),
        "left out": left_out_text(published),
        "machines": machines_text(published),
    }
    for name, fresh in parts.items():
        text = replaced(text, name, fresh)
    return text


def examples_text() -> str:
    """What every policy is predicted to reach on a machine of two sockets, and what `auto` takes."""
    names = (NumaPolicy.LOCAL, NumaPolicy.INTERLEAVE, NumaPolicy.SHARD, NumaPolicy.MIRROR, NumaPolicy.REPLICATE)
    lines = [f"| model | sequences | {' | '.join(names)} | `auto` |", "|---" * (3 + len(names)) + "|"]
    for title, work in _MODELS:
        for batch, context in _LOADS:
            choice = choose_policy(_EXAMPLE, work, {0: 256 * _GIB, 1: 256 * _GIB}, batch, context)
            rates = {p.policy: f"{p.decode_tok_s:.3g}" for p in choice.predictions}
            lines.append(f"| {title} | {batch} | {' | '.join(rates[name] for name in names)} | {choice.policy} |")
    return "\n".join(lines) + "\n"


def summary_text(published: Published) -> str:
    """Errors in words: of the model, of rows it was not fitted to, and of models that know nothing."""
    rows = published.rows
    found, unseen = score(rows, published.predicted), held_out(published)
    middle = median(row.observed for row in rows)
    same, constant = score(rows, always(1.0)), score(rows, always(middle))
    lines = [
        f"{len(rows)} rows of {len({row.source for row in rows})} sources. Directions reproduced: "
        f"{len(rows) - len(found.wrong)} of {len(rows)}.\n",
        "| | wrong directions | median error of the ratio | median error of the gain |",
        "|---|---|---|---|",
        f"| the cost model | {len(found.wrong)} | {found.ratio:.0%} | {found.gain:.0%} |",
        f"| the same, each source predicted by constants fitted to the others | {unseen.wrong} | {unseen.ratio:.0%} "
        f"| {unseen.gain:.0%} |",
        f"| always {middle:.2f}, the median ratio | {len(constant.wrong)} | {constant.ratio:.0%} | "
        f"{constant.gain:.0%} |",
        f"| always 1, no change | {len(same.wrong)} | {same.ratio:.0%} | {same.gain:.0%} |",
    ]
    return "\n".join(lines) + "\n"


def rows_text(published: Published) -> str:
    """A line for each published row."""
    lines = ["| source | machine, model | from | to | seen | predicted | off by |", "|---" * 7 + "|"]
    lines += [_row_line(row, published.predicted(row)) for row in published.rows]
    supposed = dict.fromkeys((row.source, row.supposes) for row in published.rows if row.supposes)
    notes = ["\nSupposed where the source does not say it:\n", *(f"- {source}: {what}." for source, what in supposed)]
    return "\n".join([*lines, *notes]) + "\n"


def _row_line(row: Row, predicted: float) -> str:
    what = f"{row.machine}, {row.model}, {row.phase}" + (f" of {row.tokens}" if row.tokens > 1 else "")
    off = f"{error_of_ratio(row, predicted):.0%}" + (
        f" ({error_of_gain(row, predicted):.0%} of the gain)" if direction(row.observed) else ""
    )
    sides = (f"{side.says} ({side.threads})" for side in (row.before, row.after))
    return f"| {row.source} | {what} | {' | '.join(sides)} | {row.observed:.2f}x | {predicted:.2f}x | {off} |"


def left_out_text(published: Published) -> str:
    """What was found and cannot be predicted, with the reason."""
    lines = ["| source | what it says | why it is left out |", "|---|---|---|"]
    lines += [f"| {entry.source} | {entry.what} | {entry.why} |" for entry in published.left_out]
    return "\n".join(lines) + "\n"


def machines_text(published: Published) -> str:
    """The hardware as the model takes it."""
    used: Sequence[str] = tuple(dict.fromkeys(row.machine for row in published.rows))
    lines = ["| name | what | cores a node | GB/s a node | GB/s of the links, one way |", "|---" * 5 + "|"]
    for name in used:
        spec = published.machines[name]
        lines.append(f"| {name} | {spec['what']} | {spec['cores']} | {spec['gb_s']:g} | {spec['link_gb_s']:g} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page and the drawing."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), Published.load()), encoding="utf-8")
    DRAWING.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
