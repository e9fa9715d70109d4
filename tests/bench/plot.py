"""Draw curves as SVG: x logarithmic, y from zero, one colour a line."""

from __future__ import annotations

import html
import math

from bench.scene import Curve

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 320, 70, 40, 36, 150
COLOURS = ("#0b6", "#06c", "#c40", "#80a", "#888")


def svg(curve: Curve) -> str:
    """Return the curve as one ``svg`` element."""
    points = [point for line in curve.lines.values() for point in line]
    if not points:
        return ""
    low, high = (math.log10(pick(x for x, _ in points)) for pick in (min, max))
    top = max(y for _, y in points) * 1.1 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / (high - low) if high > low else 0.5
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP),
        )

    parts = [_text(LEFT, 20, curve.title, "bold"), _text(LEFT, HEIGHT - 6, curve.x)]
    for step in range(5):
        value = top * step / 4
        _, y = at(10**low, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(
            _text(
                LEFT - 6, y + 4, f"{value:,.0f}" if value >= 100 else f"{value:.3g}", anchor="end"
            )
        )
    for x in sorted({x for x, _ in points}):
        across, _ = at(x, 0)
        parts.append(_text(across, HEIGHT - BOTTOM + 16, f"{x:,.0f}", anchor="middle"))
    parts.append(_text(WIDTH - RIGHT + 12, TOP, curve.y))
    for number, (name, line) in enumerate(curve.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(_text(WIDTH - RIGHT + 12, TOP + 20 * (number + 1), name, colour=colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' font-family="system-ui" font-size="12" role="img">{"".join(parts)}</svg>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    weight: str = "normal",
    *,
    anchor: str = "start",
    colour: str = "#222",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
        f' font-weight="{weight}">{html.escape(text)}</text>'
    )
