"""Draw what the prefetch does to the rate: lesson 14's own measurement, as an SVG.

Example: python tests/bench/prefetch.py lessons/14/prefetch.svg
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.plot import svg
from bench.scene import Curve

from delivery.lesson import Scene
from delivery.sandbox import disposable_broker
from delivery.terminal import say

LESSON = Path(__file__).resolve().parents[2] / "lessons/14/run.py"
ROUNDS = 7  # the best counts: what else the machine does only takes away


def main() -> None:
    target = Path(sys.argv[1])
    measure = runpy.run_path(str(LESSON))["prefetch_rates"]
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with disposable_broker(os.environ, say) as broker:
        for number in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                scene = Scene(broker, f"prefetch-{number}", Path(folder), 1.0)
                for prefetch, rates in measure(scene).items():
                    found[prefetch].append(rates)
                scene.clean()
    curve = Curve("Events a second, by prefetch", "prefetch (logarithmic)", "events/s")
    for place, name in enumerate(("one each, no disk", "a commit for all")):
        best = {each: max(rates[place] for rates in found[each]) for each in found}
        curve.lines[name] = [(float(each), best[each]) for each in found]
        for each, value in best.items():
            print(f"{name}, prefetch {each}: {value:,.0f}/s")
    target.write_text(svg(curve) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
