"""Change the guarantees' own modules, one small change at a time, and see the tests notice each.

mutmut does it; this script gives it a working copy, one broker for the whole run, and judges what
is left over: at most 10 % of a module's mutants, each explained in ``survivors.md`` beside this.

    make mutants                        everything from the start (39 minutes on two busy cores)
    make mutants ARGS=--resume          what an interrupted run left
    make mutants ARGS=--survivors       again what survived, after a test was sharpened
    make mutants ARGS='delivery.dead.*' some of them
    make mutants ARGS=--report          only the table of the run before
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from delivery.sandbox import disposable_broker

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".mutation"
EXPLAINED = Path(__file__).with_name("survivors.md")
MODULES = [
    Path(each).stem
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mutmut"][
        "only_mutate"
    ]
]
MOST = 0.10  # of a module's mutants may survive
AROUND = 30  # characters of the line that are shown beside a change
AS_IT_IS = r"'.*?'|\{.*?\}"  # in SQL, letter case counts in a quoted value and what is filled in

# mutmut's exit codes: of pytest, or of how its process ended.
KILLED = {1, 3}
TIMEOUT = {-24, 24, 36, 152, 255, -9}


def prepare() -> None:
    """Make the working copy anew, but keep mutmut's results of functions that did not change."""
    for name in ("delivery", "tests"):
        shutil.rmtree(WORK / name, ignore_errors=True)
        shutil.copytree(
            ROOT / name, WORK / name, ignore=shutil.ignore_patterns("__pycache__", "proof", "map")
        )
    for name in ("pyproject.toml", "STAGES.md"):
        shutil.copy(ROOT / name, WORK / name)
    for module in MODULES:
        path = WORK / "delivery" / f"{module}.py"
        path.write_text(undecorated(path.read_text("utf-8")), "utf-8")


def undecorated(source: str) -> str:
    """Write ``@contextmanager def f`` as ``f = contextmanager(f)``: mutmut skips what is decorated.

    It means the same, and so the bodies are mutated too.
    """
    lines = source.splitlines()
    for node in reversed(list(ast.walk(ast.parse(source)))):
        if isinstance(node, ast.FunctionDef) and [
            decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)
        ] == ["contextmanager"]:
            indent = " " * node.col_offset
            lines.insert(node.end_lineno or 0, f"{indent}{node.name} = contextmanager({node.name})")
            del lines[node.decorator_list[0].lineno - 1]
    return "\n".join(lines) + "\n"


def mutmut(*names: str, environ: dict[str, str]) -> None:
    """Run *names*, or all that have no result yet, one at a time: the tests share a broker."""
    program = str(Path(sys.executable).with_name("mutmut"))
    command = [program, "run", "--max-children", "1", *names]
    subprocess.run(command, cwd=WORK, env=environ, check=False)  # the report says what is missing


@dataclass(frozen=True)
class Mutant:
    """One change, and what became of it."""

    key: str  # mutmut's name for it
    module: str
    function: str
    change: str
    fate: str  # killed, timeout, survived, excluded

    def __str__(self) -> str:
        return f"`{self.module}.{self.function}`: {self.change}"


def mutants_of(module: str) -> list[Mutant]:
    """Read what mutmut wrote: the codes beside the module, the changed functions in it."""
    path = WORK / "mutants" / "delivery" / f"{module}.py"
    if not path.exists():
        sys.exit("no run yet: make mutants")
    codes = json.loads(path.with_suffix(".py.meta").read_text("utf-8"))["exit_code_by_key"]
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    found = []
    for key, code in codes.items():
        name = key.rpartition(".")[2]
        stem = name.partition("__mutmut_")[0]
        old, new = functions[f"{stem}__mutmut_orig"], functions[name]
        fate = "killed" if code in KILLED else "timeout" if code in TIMEOUT else "survived"
        if code is None:
            fate = "not run"
        elif is_same_sql(old, new):
            fate = "excluded"
        function = stem.removeprefix("x_").removeprefix("xǁ").replace("ǁ", ".")
        found.append(Mutant(key, module, function, change(old, new), fate))
    return found


def change(old: ast.FunctionDef, new: ast.FunctionDef) -> str:
    """Return ``old -> new`` of what differs, with some of the line around it."""
    before, after = (ast.unparse(each).splitlines()[1:] for each in (old, new))
    if before == after:  # then it is the head: a default
        before, after = ([ast.unparse(each.args)] for each in (old, new))
    lines = list(difflib.ndiff(before, after))
    a, b = (" ".join(x[2:].strip() for x in lines if x.startswith(sign)) for sign in "-+")
    head = common(a, b)
    tail = common(a[head:][::-1], b[head:][::-1])
    first, last = max(0, head - AROUND), max(0, tail - AROUND)
    a, b = (
        ("..." if first else "") + x[first : len(x) - last] + ("..." if last else "")
        for x in (a, b)
    )
    return f"`{a}` -> `{b}`"


def common(a: str, b: str) -> int:
    """Return the length of the start that *a* and *b* share."""
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def is_same_sql(old: ast.FunctionDef, new: ast.FunctionDef) -> bool:
    """Say whether only the letter case of SQL differs: SQLite reads names in either."""
    differing = [
        pair for pair in zip(statements(old), statements(new), strict=False) if len({*pair}) > 1
    ]
    return bool(differing) and all(
        a.lower() == b.lower() and re.findall(AS_IT_IS, a) == re.findall(AS_IT_IS, b)
        for a, b in differing
    )


def statements(function: ast.FunctionDef) -> list[str]:
    """Return the SQL in *function*: what ``execute`` or ``executemany`` gets first."""
    return [
        text(call.args[0])
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"execute", "executemany"}
        and call.args
    ]


def text(node: ast.expr) -> str:
    """Return what the string *node* says; what is filled in, and what is no string, as written."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "{" + ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node) + "}"


def report() -> bool:
    """Print the table and what is not explained; return whether all is well."""
    explained = EXPLAINED.read_text("utf-8") if EXPLAINED.exists() else ""
    fine = True
    left: list[Mutant] = []
    not_run = 0
    print("| Module | Mutants | Killed | Timeout | Survived | Share | Not counted |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for module in MODULES:
        mutants = mutants_of(module)
        count = Counter(mutant.fate for mutant in mutants)
        counted = len(mutants) - count["excluded"]
        share = count["survived"] / counted
        fine &= share <= MOST
        not_run += count["not run"]
        print(
            f"| `{module}` | {counted} | {count['killed']} | {count['timeout']}"
            f" | {count['survived']} | {share:.1%} | {count['excluded']} |"
        )
        left += survivors(mutants)
    if not_run:
        print(f"{not_run} not run yet: make mutants ARGS=--resume")
    unexplained = [mutant for mutant in left if str(mutant) not in explained]
    for mutant in unexplained:
        print(f"not explained: {mutant}")
    return fine and not not_run and not unexplained


def survivors(mutants: list[Mutant]) -> list[Mutant]:
    return [mutant for mutant in mutants if mutant.fate == "survived"]


def main(arguments: list[str]) -> int:
    if arguments == ["--report"]:
        return 0 if report() else 1
    if not arguments:
        shutil.rmtree(WORK, ignore_errors=True)
    names = [each for each in arguments if not each.startswith("--")]
    if arguments == ["--survivors"]:
        names = [each.key for module in MODULES for each in survivors(mutants_of(module))]
    prepare()
    if "DELIVERY_AMQP_URL" in os.environ:
        mutmut(*names, environ=dict(os.environ))
    else:
        with disposable_broker(os.environ, print) as broker:
            mutmut(*names, environ={**os.environ, "DELIVERY_AMQP_URL": broker.amqp_url})
    return 0 if report() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
