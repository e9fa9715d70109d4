"""Between any two durable steps stands a named point, and at each point a test kills a process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.steps import METHODS, Package, package_in, points_in

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "delivery"
REACHED = [
    (path.stem, point)
    for path in sorted(PACKAGE.glob("*.py"))
    for point in points_in(path.read_text("utf-8"))
]
# Not between two steps, but worth a kill: inside a transaction, and before an answer is given.
BESIDE = {
    "consumer.handled",
    "reconcile.concluded",
    "trail.concluded",
    "trail.begun",  # the finder does not follow what is passed on as a callback
    "consumer.applied",
    "materials.written",
    "materials.committed",
    "copy.written",  # inside a transaction
    "move.set_aside",  # what follows is the deletion of queues, no step for the finder
    "move.deleted",
    "move.unbound",
}


def kill_tested() -> list[str]:
    """The points named by ``@at(...)`` on tests that arm their *point* in a process."""
    found = []
    for path in (ROOT / "tests/crash").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and _arms_its_point(node):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "at":
                        found += [ast.literal_eval(each) for each in mark.args]
    return found


def _arms_its_point(test: ast.FunctionDef) -> bool:
    armed: list[ast.expr] = []
    for node in ast.walk(test):
        match node:
            case ast.keyword(arg="DELIVERY_KILL_AT"):
                armed.append(node.value)
            case ast.Dict():
                names = [getattr(key, "value", None) for key in node.keys]
                armed += [
                    v for k, v in zip(names, node.values, strict=True) if k == "DELIVERY_KILL_AT"
                ]
    return any(isinstance(n, ast.Name) and n.id == "point" for a in armed for n in ast.walk(a))


def test_no_two_durable_steps_without_a_point_between_them() -> None:
    """Whoever adds a durable step adds a place to kill the process before and after it."""
    assert package_in(PACKAGE).gaps() == []


def test_the_points_are_those_at_which_a_test_kills() -> None:
    """Each point has a name of its own, and exactly one kill test."""
    assert sorted(kill_tested()) == sorted(point for _, point in REACHED)
    assert len({point for _, point in REACHED}) == len(REACHED)


@pytest.mark.parametrize(("module", "point"), [each for each in REACHED if each[1] not in BESIDE])
def test_without_a_point_the_gap_is_seen(module: str, point: str) -> None:
    """The finder is tried on the package itself, one point taken away at a time."""
    text = (PACKAGE / f"{module}.py").read_text("utf-8")
    without = text.replace(f'reach("{point}")', "pass")
    assert without != text
    assert package_in(PACKAGE, {module: without}).gaps() != []


@pytest.mark.parametrize(
    "added",
    [
        "channel.basic_ack(tag)",
        "with transaction(store):\n        pass",
        "store.execute('DELETE FROM outbox')",
        "relay_once(outbox, channel)",
    ],
    ids=["settlement", "commit", "autocommit", "a call that takes steps"],
)
def test_a_new_step_without_a_point_is_seen(added: str) -> None:
    """Put behind another step, each kind of step makes a gap."""
    text = (PACKAGE / "relay.py").read_text("utf-8")
    new = f"\n\ndef new(channel: ConfirmedChannel) -> None:\n    channel.move()\n    {added}\n"
    (gap,) = package_in(PACKAGE, {"relay": text + new}).gaps()
    assert gap.startswith("relay.py:")
    assert " channel.move(...) -> " in gap


CASES = {
    "one after the other": ("a.move()\n    a.move()", True),
    "a point between": ("a.move()\n    reach('x')\n    a.move()", False),
    "from one round to the next": ("for x in y:\n        a.move()", True),
    "a round that ends with a point": ("for x in y:\n        a.move()\n        reach('x')", False),
    "only on one branch": ("if x:\n        a.move()\n    a.move()", True),
    "on branches that exclude each other": (
        "if x:\n        a.move()\n    else:\n        a.move()",
        False,
    ),
    "a branch that leaves": ("if x:\n        return a.move()\n    a.move()", False),
    "in what handles an error": ("try:\n        a.move()\n    except E:\n        a.move()", True),
    "at the end, come what may": ("try:\n        a.move()\n    finally:\n        a.move()", True),
    "a publish inside a transaction": ("with transaction(s):\n        a.move()", True),
    "the commit, then a publish": ("with transaction(s):\n        pass\n    a.move()", True),
    "left by return": ("with transaction(s):\n        return a.move()", True),
    "two in one expression": ("f(a.move(), a.move())", True),
    "in a comprehension": ("[a.move() for x in y]", True),
    "in a callee": ("a.move()\n    step()", True),
    "in a callee that reaches a point first": ("a.move()\n    careful()", False),
    "after a callee that ends with a point": ("careful()\n    a.move()", False),
    "on the way into a context": ("a.move()\n    with around():\n        pass", True),
    "inside a context": ("with around():\n        a.move()", True),
    "on the way out of a context": ("with around():\n        reach('x')\n        a.move()", True),
    "only an argument": ("pool.submit(step)\n    a.move()", True),
    "a callback of a known kind": ("policy()\n    a.move()", True),
}
HELPERS = """
def step():
    a.move()

def careful():
    reach('p')
    a.move()
    reach('q')

@contextmanager
def around():
    a.move()
    yield
    a.move()

def maker() -> FailurePolicy:
    def one():
        a.move()
    return one
"""


@pytest.mark.parametrize(("body", "gap"), CASES.values(), ids=CASES.keys())
def test_a_gap_is_where_two_steps_can_follow_each_other(body: str, gap: bool) -> None:
    """Branches, loops, errors, contexts and callees are followed as they run."""
    source = f"def new(policy: FailurePolicy):\n    {body}\n"
    found = Package({"new": source + HELPERS}).gaps()
    inside_helpers = Package({"new": HELPERS}).gaps()
    assert (len(found) > len(inside_helpers)) is gap


def test_a_step_is_a_step_by_any_of_its_names() -> None:
    """Each method that is named as a durable step counts as one."""
    for method in METHODS:
        assert len(Package({"m": f"def f():\n    a.{method}(1)\n    a.{method}(2)\n"}).gaps()) == 1
