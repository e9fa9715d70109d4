"""Draw a chaos run as one page without any outside address: faults above, counts below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["page"]

WIDTH, LEFT, LANE, CHART = 1200, 110, 24, 220  # pixels
LANES = ("api", "relay", "relay-1", "relay-2", "relay-3", "catalog", "audit")
COLOURS = {"bit": "#c2410c", "not": "#9ca3af", "error": "#7f1d1d"}
PLACES = (("pending", "#b45309"), ("ready", "#2563eb"), ("retry", "#7c3aed"), ("dead", "#dc2626"))

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 1240px; margin: 1.5rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } text { fill: currentColor; font-size: 13px; }
text.in { fill: #fff; font-size: 11px; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem; text-align: right; }
td:first-child, th:first-child, td.text { text-align: left; }
.wrong { color: #dc2626; font-weight: 600; } .scroll { overflow-x: auto; }
"""


def page(data: Mapping[str, Any]) -> str:
    """Return the page for what `reporting.as_data` gives."""
    verdict = "everything adds up" if data["adds_up"] else "this does not add up"
    title = f"Chaos run, seed {data['seed']}: {verdict}"
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>",
        "<meta name='viewport' content='width=device-width'>",
        f"<style>{_STYLE}</style><body><h1>{escape(title)}</h1>",
        f"<p>{escape(data['broker'])}, {data['seconds']} s, {data['tally']['accepted']} accepted,"
        f" {data['load']['rate']:g} a second asked for.</p>",
        *(f"<p class='wrong'>{escape(line)}</p>" for line in data["differences"]),
        "<h2>What happened when</h2><div class='scroll'>",
        _timeline(data),
        "</div><h2>Where every accepted event is</h2>",
        _table(("recipient", *_COLUMNS), [[a["recipient"], *_counts(a)] for a in data["accounts"]]),
        "<h2>Each kind of fault</h2>",
        _table(
            ("kind", "injected", "bit", "healed by reconcile"),
            [[k, n["injected"], n["bit"], _healed(data, k)] for k, n in data["kinds"].items()],
        ),
        "<h2>Every fault</h2><div class='scroll'>",
        _table(
            ("number", "kind", "began (s)", "took (s)", "evidence"),
            [_row(fault, data["begun"]) for fault in data["faults"]],
        ),
        "</div></body></html>",
    ]
    return "\n".join(parts)


_COLUMNS = ("accepted", "applied", "stale", "dead", "pending", "difference")


def _counts(account: Mapping[str, Any]) -> list[Any]:
    return [account[column] for column in _COLUMNS]


def _healed(data: Mapping[str, Any], kind: str) -> int:
    return sum(each["fault"] == kind for each in data["healed"])


def _row(fault: Mapping[str, Any], begun: float) -> list[Any]:
    said = fault["evidence"] if fault["bit"] else f"did not bite: {fault['evidence']}"
    if fault["error"]:
        said = f"did not recover: {fault['error']}"
    began, took = fault["begun"] - begun, fault["ended"] - fault["begun"]
    return [fault["number"], fault["kind"], f"{began:.1f}", f"{took:.1f}", said]


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = "".join(f"<th scope='col'>{escape(each)}</th>" for each in head)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=text' if isinstance(cell, str) else ''}>{escape(str(cell))}</td>"
            for cell in row
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _timeline(data: Mapping[str, Any]) -> str:
    begun, seconds = float(data["begun"]), max(float(data["seconds"]), 1.0)

    def x(at: float) -> float:
        return round(LEFT + (at - begun) / seconds * (WIDTH - LEFT - 10), 1)

    lanes = [lane for lane in LANES if any(lane in each["target"] for each in data["faults"])]
    top = len(lanes) * LANE + 20
    height = top + 2 * (CHART + 40)
    return "\n".join(
        [
            f"<svg viewBox='0 0 {WIDTH} {height}' role='img'"
            " aria-label='Faults above, counts over time below'>",
            *_faults(data["faults"], lanes, x),
            *_chart(data, x, top, "accepted and settled", [
                ("accepted", "#16a34a", [s["accepted"] for s in data["timeline"]]),
                *(
                    (f"settled by {r}", c, [s["settled"][r] for s in data["timeline"]])
                    for r, c in (("catalog", "#2563eb"), ("audit", "#9333ea"))
                ),
            ]),
            *_chart(data, x, top + CHART + 40, "waiting", [
                (place, colour, [_total(s[place]) for s in data["timeline"]])
                for place, colour in PLACES
            ]),
            "</svg>",
        ]
    )  # fmt: skip


def _faults(faults: Sequence[Mapping[str, Any]], lanes: Sequence[str], x: Any) -> Iterator[str]:
    for row, lane in enumerate(lanes):
        yield f"<text x='0' y='{row * LANE + 16}'>{lane}</text>"
    for fault in faults:
        state = "error" if fault["error"] else "bit" if fault["bit"] else "not"
        left, right = x(fault["begun"]), x(fault["ended"])
        label = escape(f"{fault['number']} {fault['kind']}: {fault['evidence'] or fault['error']}")
        for process in fault["target"]:
            yield (
                f"<rect x='{left}' y='{lanes.index(process) * LANE + 2}'"
                f" width='{max(right - left, 2):.1f}' height='{LANE - 4}' rx='2'"
                f" fill='{COLOURS[state]}' fill-opacity='.75'><title>{label}</title></rect>"
            )
            if right - left > 7 * len(fault["kind"]):
                middle = lanes.index(process) * LANE + 16
                yield f"<text class='in' x='{left + 4}' y='{middle}'>{fault['kind']}</text>"


def _chart(
    data: Mapping[str, Any],
    x: Any,
    top: float,
    what: str,
    lines: Sequence[tuple[str, str, Sequence[int | None]]],
) -> Iterator[str]:
    most = max((n for _, _, counts in lines for n in counts if n is not None), default=0) or 1
    bottom = top + CHART
    yield f"<text x='0' y='{top + 12}'>{most}</text><text x='0' y='{bottom}'>0</text>"
    yield f"<text x='0' y='{top + CHART / 2}'>{what}</text>"
    yield f"<path d='M{LEFT} {bottom}H{WIDTH}' stroke='currentColor' stroke-opacity='.3'/>"
    for number, (name, colour, counts) in enumerate(lines):
        points, path = "M", []
        for sample, count in zip(data["timeline"], counts, strict=True):
            if count is None:
                points = "M"  # nobody answered: a gap, not a zero
                continue
            path.append(f"{points}{x(sample['at'])} {bottom - count / most * CHART:.1f}")
            points = "L"
        yield f"<path d='{''.join(path)}' fill='none' stroke='{colour}' stroke-width='2'/>"
        left = LEFT + number * 170
        yield f"<rect x='{left}' y='{bottom + 10}' width='12' height='12' fill='{colour}'/>"
        yield f"<text x='{left + 18}' y='{bottom + 21}'>{name}</text>"


def _total(counts: Any) -> int | None:
    """Add the recipients' counts up; None if one of them is not known."""
    if not isinstance(counts, Mapping):
        return None if counts is None else int(counts)
    known = [count for count in counts.values() if count is not None]
    return sum(known) if len(known) == len(counts) else None
