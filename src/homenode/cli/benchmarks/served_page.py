"""What clients saw of a server, as a page: throughput and times over the number of clients, and the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homenode.bench.serving.served import Served
from homenode.cli.output.html_page import Markup, h, html_page
from homenode.units import format_count

_WIDTH, _HEIGHT, _LEFT, _BELOW, _TOP = 420, 220, 52, 26, 12
_COLUMNS: tuple[tuple[str, Callable[[Served], str]], ...] = (
    ("Clients", lambda each: str(each.clients)),
    ("Requests", lambda each: str(each.requests)),
    ("Output tok/s", lambda each: f"{each.output_tok_s:.1f}"),
    ("Total tok/s", lambda each: f"{each.total_tok_s:.1f}"),
    ("TTFT ms", lambda each: f"{1000 * each.ttft_median_s:.1f}"),
    ("95 %", lambda each: f"{1000 * each.ttft_p95_s:.1f}"),
    ("ITL ms", lambda each: f"{1000 * each.itl_median_s:.1f}"),
    ("95 %", lambda each: f"{1000 * each.itl_p95_s:.1f}"),
    ("Longest", lambda each: f"{1000 * each.itl_max_s:.1f}"),
    ("TPOT ms", lambda each: f"{1000 * each.tpot_median_s:.1f}"),
)


def served_page(url: str, prompt_tokens: int, gen_tokens: int, made_at: str, results: Sequence[Served]) -> str:
    """The whole document. `made_at`: the time, in words."""
    sizes = f"prompts of {format_count(prompt_tokens, 'token')}, answers of {gen_tokens}"
    asked = f"{sizes}; medians and 95th percentiles over all clients"
    return html_page(
        f"homenode bench serve: {url}",
        h(
            "div",
            {"class": "wrap"},
            h("h1", {"class": "planned"}, f"What clients see of {url}"),
            h("p", {"class": "machinehead"}, f"{asked} · {made_at}"),
            h(
                "div",
                {"class": "sides"},
                _chart("Output tokens per second", results, [("all clients", lambda each: each.output_tok_s)]),
                _chart(
                    "Time to first token, ms",
                    results,
                    [
                        ("median", lambda each: 1000 * each.ttft_median_s),
                        ("95 %", lambda each: 1000 * each.ttft_p95_s),
                    ],
                ),
                _chart(
                    "Time between tokens, ms",
                    results,
                    [("median", lambda each: 1000 * each.itl_median_s), ("95 %", lambda each: 1000 * each.itl_p95_s)],
                ),
            ),
            h("div", {"class": "wide", "tabindex": 0, "role": "region", "aria-label": "Figures"}, _table(results)),
        ),
    )


def _table(results: Sequence[Served]) -> Markup:
    head = h("tr", {}, [h("th", {"scope": "col"}, name) for name, _ in _COLUMNS])
    rows = [h("tr", {}, [h("td", {}, text(each)) for _, text in _COLUMNS]) for each in results]
    return h("table", {"class": "lines"}, h("thead", {}, head), h("tbody", {}, rows))


def _chart(title: str, results: Sequence[Served], series: Sequence[tuple[str, Callable[[Served], float]]]) -> Markup:
    """Lines over the measurements, which are at even distances, with a mark for each."""
    most = _round_above(max(pick(each) for _, pick in series for each in results))
    step = (_WIDTH - _LEFT - 16) / max(1, len(results) - 1)

    def x(at: int) -> float:
        return _LEFT + (step * at if len(results) > 1 else (_WIDTH - _LEFT) / 2)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BELOW) * (1 - value / most)

    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        height = y(share * most)
        parts.append(h("path", {"class": "axis", "d": f"M{_LEFT} {height:.1f}H{_WIDTH - 8}"}))
        left = {"x": _LEFT - 8, "y": f"{height + 4:.1f}", "text-anchor": "end", "class": "tick"}
        parts.append(h("text", left, f"{share * most:g}"))
    for at, each in enumerate(results):
        place = {"x": f"{x(at):.1f}", "y": _HEIGHT - 6, "text-anchor": "middle", "class": "tick"}
        parts.append(h("text", place, str(each.clients)))
    for number, (_, pick) in enumerate(series):
        points = [(x(at), y(pick(each))) for at, each in enumerate(results)]
        line = "".join(f"{'L' if at else 'M'}{left:.1f} {top:.1f}" for at, (left, top) in enumerate(points))
        parts.append(h("path", {"class": f"line l{number}", "d": line}))
        parts += [h("circle", {"class": f"dot{number}", "cx": f"{a:.1f}", "cy": f"{b:.1f}", "r": 3}) for a, b in points]
    words = f"{title}, by the number of clients; the table has the figures"
    frame = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": words}
    keys = [h("span", {"class": f"key k{number}"}, name) for number, (name, _) in enumerate(series)]
    caption = h("figcaption", {}, h("span", {}, title), h("span", {"class": "now"}, keys))
    return h("figure", {"class": "chart tall"}, caption, h("svg", frame, parts))


def _round_above(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below."""
    power = 1e-6
    while power * 10 < value:
        power *= 10
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value or step == 10)
