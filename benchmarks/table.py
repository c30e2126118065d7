"""The tables of docs/performance.md and docs/measurements/other-engines.md, made of the records next to the latter:
`python -m benchmarks.table` (a test holds both pages up to date).

Only text between the markers `<!-- name -->` and `<!-- end of name -->` is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from benchmarks.comparison import PLACES, Combination, Comparison, Pair, Row, own_rates, row_of
from benchmarks.served import ServedComparison, served_text
from benchmarks.workload import Rates

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_FOLDER = _DOCS / "measurements"
PAGE = _FOLDER / "other-engines.md"
SUMMARY = _DOCS / "performance.md"
# By the name of the markers.
RECORDS = {"comparison": _FOLDER / "comparison.json", "comparison without AVX-512": _FOLDER / "comparison-avx2.json"}
SERVED_RECORDS = {
    "served comparison": _FOLDER / "comparison-served.json",
    "served comparison without AVX-512": _FOLDER / "comparison-served-avx2.json",
}
_BEHIND = 1.0


def page(text: str, records: Mapping[str, Comparison], served: Mapping[str, ServedComparison]) -> str:
    """The page with its tables made anew."""
    for name, record in records.items():
        text = replaced(text, name, comparison_text(record))
    for name, of_clients in served.items():
        text = replaced(text, name, served_text(of_clients))
    return text


def page_of_records(text: str) -> str:
    """The page as what lies next to it says."""
    served = {name: ServedComparison.load_file(file) for name, file in SERVED_RECORDS.items()}
    return page(text, {name: Comparison.load(file) for name, file in RECORDS.items()}, served)


def summary_of_records(text: str) -> str:
    """The page of short answers as the records say."""
    for name, file in RECORDS.items():
        text = replaced(text, f"{name} in short", short_text(Comparison.load(file)))
    return text


def short_text(record: Comparison) -> str:
    """A table of the least and the largest ratio to each engine, by case, over all shapes, formats and places."""
    cases = record.workload.cases
    ratios: dict[str, dict[str, list[float]]] = {}
    for combination in record.combinations:
        for place in PLACES:
            found = row_of(combination, [p for p in record.counted(combination) if p.place == place], cases)
            for case, ratio in found.ratios.items():
                ratios.setdefault(combination.engine, {}).setdefault(case, []).append(ratio)
    lines = [f"| | {' | '.join(map(_case_title, cases))} |", "|---" * (1 + len(cases)) + "|"]
    for engine, of_engine in sorted(ratios.items()):
        lines.append(f"| {engine} | {' | '.join(_range(of_engine.get(case, [])) for case in cases)} |")
    return "\n".join(lines) + "\n"


def _range(ratios: Sequence[float]) -> str:
    """`1.05 to 1.66`, one figure where there is only one, or nothing."""
    ends = sorted({f"{min(ratios):.2f}", f"{max(ratios):.2f}"}, key=float) if ratios else []
    return " to ".join(ends)


def replaced(text: str, name: str, fresh: str) -> str:
    """With other text between the markers of this name. ValueError when they are not there once each."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"the page needs {start.strip()!r} and {end!r} once each")
    return text[: text.index(start) + len(start)] + _wrapped(fresh) + text[text.index(end) :]


def _wrapped(text: str) -> str:
    """The text with lines of at most 120 columns, tables aside."""
    lines = []
    for line in text.split("\n"):
        wide = len(line) > 120 and not line.startswith("|")
        behind = "  " if line.startswith("- ") else ""
        lines += wrap(line, 120, subsequent_indent=behind, break_on_hyphens=False) if wide else [line]
    return "\n".join(lines)


def comparison_text(record: Comparison) -> str:
    """What is slower here than elsewhere, a table for each shape, and where the figures come from."""
    if not record.combinations:
        return "Nothing has been measured yet.\n"
    tables = []
    behind = []
    for shape, of_shape in groupby(record.combinations, key=lambda c: c.shape):
        combinations = list(of_shape)
        for place in PLACES:
            pairs = {c: [pair for pair in record.counted(c) if pair.place == place] for c in combinations}
            there = {c: found for c, found in pairs.items() if found}
            if not there:
                continue
            rows = [row_of(c, found, record.workload.cases) for c, found in there.items()]
            behind += behind_lines(rows, place)
            tables.append(
                _shape_table(f"Shape of {shape}{place and f', CPUs {place}'}:", rows, there, record.workload.cases)
            )
    return "\n".join([behind_text(behind), *tables, _origin(record)]) + "\n"


def behind_lines(rows: Sequence[Row], place: str) -> list[str]:
    """A line for each combination in which the other side is faster while the CPUs were there."""
    lines = []
    for row in rows:
        slower = [f"{_case_title(case)} ({ratio:.2f}x)" for case, ratio in row.ratios.items() if ratio < _BEHIND]
        if slower:
            where = f", CPUs {place}" if place else ""
            lines.append(
                f"- {row.combination.shape}, {row.combination.format}{where}, against {_against(row.combination)}: "
                f"{', '.join(slower)}"
            )
    return lines


def behind_text(lines: Sequence[str]) -> str:
    """These lines, or that there are none."""
    if not lines:
        return "Behind: in none of the cases below.\n"
    return "\n".join(["Behind, that is slower than the other side:\n", *lines]) + "\n"


def _shape_table(
    title: str, rows: Sequence[Row], pairs: Mapping[Combination, Sequence[Pair]], cases: Sequence[str]
) -> str:
    lines = [f"{title}\n", f"| weights | | {' | '.join(map(_case_title, cases))} |", "|---" * (2 + len(cases)) + "|"]
    for format, of_format in groupby(rows, key=lambda row: row.combination.format):
        group = list(of_format)
        ours = own_rates([pair for row in group for pair in pairs[row.combination]], cases)
        lines.append(
            _line(
                f"**{format}**",
                "homenode, tok/s",
                [f"**{_rate(ours, case)}**" if case in ours else "" for case in cases],
            )
        )
        lines += [_line("", _against(row.combination), [_cell(row, case) for case in cases]) for row in group]
    return "\n".join(lines) + "\n"


def _line(first: str, second: str, cells: Sequence[str]) -> str:
    return f"| {first} | {second} | {' | '.join(cells)} |"


def _cell(row: Row, case: str) -> str:
    """`2.31x (154)`: our speed as a multiple of theirs, and theirs in tokens a second."""
    return f"{row.ratios[case]:.2f}x ({_rate(row.theirs, case)})" if case in row.ratios else ""


def _rate(rates: Rates, case: str) -> str:
    return f"{rates[case]:.0f}" if case in rates else ""


def _against(combination: Combination) -> str:
    return f"{combination.engine}, {combination.variant}" if combination.variant else combination.engine


def _case_title(case: str) -> str:
    return case if case == "prefill" else f"decode, {case}"


def _origin(record: Comparison) -> str:
    """Machine, versions, what was done and how many pairs count."""
    machine, work = record.machine, record.workload
    counted = sum(pair.discarded is None for pair in record.pairs)
    lines = [
        f"Machine: {machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, transparent huge pages "
        f"`{machine['transparent_hugepage']}`; {work.threads} threads for every engine. Prefill: one prompt of "
        f"{work.prompt} tokens. Decode: "
        f"{work.steps} tokens for each sequence after {work.context} others. {counted} pairs count, "
        f"{len(record.pairs) - counted} were "
        "measured while the CPUs moved or others used them and do not.\n",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(record.versions.items())) + ".\n",
    ]
    if record.skipped:
        lines += ["Not measured:\n", *(f"- {line}" for line in record.skipped), ""]
    return "\n".join(lines)


def main() -> None:
    """Write both pages."""
    for file, written in ((PAGE, page_of_records), (SUMMARY, summary_of_records)):
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
