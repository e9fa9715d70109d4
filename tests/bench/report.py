"""Tell what was measured: a table, JSON, and a page with plots."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.machine import Machine
from bench.plot import svg
from bench.scene import Curve, Row
from rich.console import Console
from rich.table import Table

HEAD = ("work", "ours", "beside", "theirs", "ratio", "target", "")


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.work,
        _number(row.ours, row.unit),
        row.beside or "-",
        "-" if row.theirs is None else _number(row.theirs, row.unit),
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        row.target or "-",
        {True: "met", False: "MISSED", None: ""}[row.met],
    )


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in HEAD:
        table.add_column(title, justify="right" if title in ("ours", "theirs", "ratio") else "left")
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)


def write(
    folder: Path, rows: Sequence[Row], curves: Sequence[Curve], machine: Sequence[str]
) -> None:
    """Write ``bench.json`` and ``bench.html`` into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": list(machine),
        "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in rows],
        "curves": [asdict(curve) for curve in curves],
    }
    (folder / "bench.json").write_text(json.dumps(data, indent=1), "utf-8")
    (folder / "bench.html").write_text(_page(rows, curves, machine), "utf-8")


def _page(rows: Sequence[Row], curves: Sequence[Curve], machine: Sequence[str]) -> str:
    lines = [_line("th", HEAD), *(_line("td", cells(row)) for row in rows)]
    plots = "\n".join(f"<figure>{svg(curve)}</figure>" for curve in curves)
    about = "<br>".join(html.escape(each) for each in machine)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Delivery, measured</title>'
        "<style>body{font:15px system-ui;margin:2rem;max-width:70rem}td,th{padding:.2rem .8rem;"
        "text-align:left;border-bottom:1px solid #ddd}figure{margin:1rem 0}</style>"
        f"<h1>Delivery, measured</h1><p>{about}</p><table>{''.join(lines)}</table>{plots}</html>"
    )


def _line(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(each)}</{tag}>" for each in texts) + "</tr>"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:,.2f} {unit}"


def machine_lines(before: Machine, after: Machine) -> list[str]:
    return [f"before: {before}", f"after: {after}"]
