"""Find the durable steps in the package's code, and the gaps between two of them without a point.

A durable step changes where a fact is kept, so that a crash right after it leaves a trace:

- the commit at the end of ``with transaction(...)``, or a writing statement outside of one;
- a publish (``.move``, ``.send``, ``.send_all`` of a confirmed channel, ``.basic_publish``);
- a settlement (``.basic_ack``, ``.basic_nack``, ``.basic_reject``);
- ``record(...)``, which keeps answers (an outbox's batch) or decisions (the operator's desk);
- a call of a function of the package, a failure policy or a guard that takes one of these.

Not counted: tables and topology that whoever comes next creates again, and the sandbox's files.
Each function is walked along its branches, loops (from one round into the next), context managers
and ``except`` blocks; what a callee has open at its end counts for its caller.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

METHODS = {"move", "send", "send_all", "record", "basic_publish"}
METHODS |= {"basic_ack", "basic_nack", "basic_reject"}
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")
CALLBACKS = (
    "FailurePolicy",
    "Guard",
    "Apply",
)  # a parameter of this type stands for all that return one
SET_UP = {"open_store", "open_postgres"}
# No participants: they play what participants do, keep a learner's progress, or try out a broker
# with a queue of their own; break what participants do; act for an audience; answer over HTTP; keep
# ids and rows in a temporary file; ask by a message that the broker never takes, or by a commit
# that keeps nothing.
STAGE = {"course", "demo", "lesson", "props", "ready", "scenes"}
STAGE.update(("arena", "chaos", "heal"))
STAGE.update(("stage_messages", "stage_desk", "stagehand", "live_demo"))
STAGE.update(("acts", "malformed", "ordered", "sheet", "verify", "writable", "postgres_writable"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Step:
    """One durable step in the code."""

    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} {self.what}"


ENTRY = Step("", 0, "whatever the caller did last")
State = frozenset[Step] | None  # steps that no point follows yet, on any path; None: no path
CLEAN: frozenset[Step] = frozenset()


def joined(*states: State) -> State:
    real = [state for state in states if state is not None]
    return CLEAN.union(*real) if real else None


@dataclass
class Summary:
    """What a caller must know: steps that may come first, and what may be open at the end."""

    first: set[Step] = field(default_factory=set)
    end: State = frozenset({ENTRY})
    gaps: set[tuple[Step, Step]] = field(default_factory=set)


@dataclass
class Scope:
    """A function in its surroundings."""

    module: str
    node: Function
    owner: str  # its class, or ""
    outer: Scope | None

    def __hash__(self) -> int:
        return id(self.node)


class Package:
    """The functions of a package, found by name."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.scopes: list[Scope] = []
        self.imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._summaries: dict[Scope, Summary] = {}
        self._top: dict[tuple[str, str, str], Scope] = {}
        self._inner: dict[tuple[Scope, str], Scope] = {}
        self._methods: dict[tuple[str, str], Scope] = {}
        for module, source in sources.items():
            tree = _parsed(source)
            self.imports[module] = dict(_imported(tree))
            self._collect(module, tree.body, "", None)

    def gaps(self) -> list[str]:
        """Return each pair of steps that can follow each other without a point between them."""
        found = {gap for scope in self.scopes for gap in self.summary(scope).gaps}
        return sorted(f"{first} -> {second}" for first, second in found)

    def summary(self, scope: Scope) -> Summary:
        if scope not in self._summaries:
            self._summaries[scope] = Summary()  # what calls itself meets this one
            self._summaries[scope] = Walk(self, scope).summary()
        return self._summaries[scope]

    def named(self, module: str, name: str, owner: str = "") -> Scope | None:
        return self._top.get((module, name, owner))

    def returning(self, kind: str) -> list[Scope]:
        """The functions inside those that return a *kind*."""
        return [
            scope
            for scope in self.scopes
            if scope.outer and kind in ast.unparse(scope.outer.node.returns or ast.Constant(""))
        ]

    def method(self, owner: str, name: str) -> Scope | None:
        """A method by its class, or by a variable that is named after the class."""
        return self._methods.get((owner.lower().replace("_", ""), name))

    def inside(self, outer: Scope, name: str) -> Scope | None:
        return self._inner.get((outer, name))

    def _add(self, scope: Scope) -> None:
        self.scopes.append(scope)
        name = scope.node.name
        if scope.outer is not None:
            self._inner.setdefault((scope.outer, name), scope)
        else:
            self._top.setdefault((scope.module, name, scope.owner), scope)
        if scope.owner:
            self._methods.setdefault((scope.owner.lower().replace("_", ""), name), scope)

    def _collect(self, module: str, body: list[ast.stmt], owner: str, outer: Scope | None) -> None:
        for node in body:
            if isinstance(node, Function):
                scope = Scope(module, node, owner, outer)
                self._add(scope)
                self._collect(module, node.body, "", scope)
            elif isinstance(node, ast.ClassDef):
                self._collect(module, node.body, node.name, outer)
            elif outer is not None:
                inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
                self._collect(module, inner, owner, outer)


class Walk:
    """Goes through one function in the order in which it runs."""

    def __init__(self, package: Package, scope: Scope) -> None:
        self._package = package
        self._scope = scope
        self._found = Summary()
        self._returned: State = None
        self._breaks: list[State] = []
        self._continues: list[State] = []
        self._seen: list[set[Step]] = []  # for each try around: what was open at any time in it
        self._at_yield: Callable[[State], State] = lambda state: state

    def summary(self) -> Summary:
        end = self._block(self._scope.node.body, frozenset({ENTRY}))
        self._found.end = joined(end, self._returned)
        return self._found

    # -- statements

    def _block(self, body: list[ast.stmt], state: State) -> State:
        for node in body:
            if state is None:
                break
            state = self._statement(node, state)
            for seen in self._seen:
                seen |= state or CLEAN
        return state

    def _statement(self, node: ast.stmt, state: State) -> State:
        match node:
            case ast.If():
                state = self._expression(node.test, state)
                return joined(self._block(node.body, state), self._block(node.orelse, state))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, state)
            case ast.With() | ast.AsyncWith():
                return self._with(node.items, node.body, state)
            case ast.Try():
                return self._try(node, state)
            case ast.Match():
                state = self._expression(node.subject, state)
                return joined(state, *(self._block(case.body, state) for case in node.cases))
            case ast.Return():
                self._returned = joined(self._returned, self._expression(node.value, state))
                return None
            case ast.Raise():
                self._expression(node.exc, state)
                return None
            case ast.Break():
                self._breaks[-1] = joined(self._breaks[-1], state)
                return None
            case ast.Continue():
                self._continues[-1] = joined(self._continues[-1], state)
                return None
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return state  # walked by itself
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                state = self._expression(child, state)
        return state

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        self._breaks.append(None)
        self._continues.append(None)
        for _ in range(2):  # the second round meets what the first one left open
            state = self._expression(node.test if isinstance(node, ast.While) else node.iter, state)
            state = joined(state, self._block(node.body, state), self._continues[-1])
        self._continues.pop()
        for_ever = isinstance(node, ast.While) and getattr(node.test, "value", None) is True
        return joined(None if for_ever else self._block(node.orelse, state), self._breaks.pop())

    def _try(self, node: ast.Try, state: State) -> State:
        self._seen.append(set(state or CLEAN))
        body = self._block(node.orelse, self._block(node.body, state))
        seen = frozenset(self._seen.pop())
        handled = [self._block(handler.body, seen) for handler in node.handlers]
        end = joined(body, *handled)
        if node.finalbody:
            end = self._block(node.finalbody, end if end is not None else seen)
        return end

    def _with(self, items: list[ast.withitem], body: list[ast.stmt], state: State) -> State:
        if not items:
            return self._block(body, state)
        call, rest = items[0].context_expr, items[1:]
        outside, self._returned = self._returned, None
        inner = lambda s: self._with(rest, body, s)  # noqa: E731
        through: list[bool] = []

        def run(at_yield: State) -> State:
            """The body, then what leaves it by return: the exit of the context comes after both."""
            end = inner(at_yield)
            through.append(end is not None)
            return joined(end, self._returned)

        if _name(call) == "transaction":
            end = self._step(call, f"commit of {ast.unparse(call)}", run(state))
        elif managers := [s for s in self._called(call) if _is_manager(s.node)]:
            end = joined(*(self._inlined(scope, state, run) for scope in managers))
        else:
            end = run(self._expression(call, state))
        left = self._returned is not None
        self._returned = joined(outside, end) if left else outside
        return end if any(through) else None

    def _inlined(self, scope: Scope, state: State, run: Callable[[State], State]) -> State:
        """Walk a context manager as if it stood here: the body runs at its ``yield``."""
        inner = Walk(self._package, scope)
        inner._found = self._found
        inner._seen = self._seen
        inner._at_yield = run
        return joined(inner._block(scope.node.body, state), inner._returned)

    # -- expressions

    def _expression(self, node: ast.expr | None, state: State) -> State:
        if node is None or state is None or isinstance(node, ast.Lambda):
            return state
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            for _ in range(2):
                state = self._children(node, state)
            return state
        state = self._children(node, state)
        if isinstance(node, ast.Yield):
            return self._at_yield(state)
        return self._call(node, state) if isinstance(node, ast.Call) else state

    def _children(self, node: ast.AST, state: State) -> State:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                state = self._expression(child, state)
            elif isinstance(child, ast.keyword | ast.comprehension):
                state = self._children(child, state)
        return state

    def _call(self, node: ast.Call, state: State) -> State:
        name = _name(node)
        if name == "reach":
            return CLEAN
        if name in METHODS and (isinstance(node.func, ast.Attribute) or name == "record"):
            return self._step(node, f"{ast.unparse(node.func)}(...)", state)
        if _writes(node):
            return self._step(node, "a statement outside a transaction", state)
        if name == "submit" and node.args:
            node = ast.Call(node.args[0], [], [])
        called = [self._package.summary(scope) for scope in self._called(node)]
        for summary in called:
            for first in summary.first:
                self._follow(first, state)
        ends = [summary.end for summary in called]
        if not ends or state is None:
            return state
        end = joined(*ends) or CLEAN
        return (end - {ENTRY}) | (state if ENTRY in end else CLEAN)

    def _step(self, node: ast.expr, what: str, state: State) -> State:
        if state is None:
            return None
        step = Step(self._scope.module, node.lineno, what)
        self._follow(step, state)
        return frozenset({step})

    def _follow(self, step: Step, state: State) -> None:
        for before in state or CLEAN:
            if before is ENTRY:
                self._found.first.add(step)
            else:
                self._found.gaps.add((before, step))

    def _called(self, node: ast.expr) -> list[Scope]:
        """The functions of the package that this call may run."""
        if not isinstance(node, ast.Call) or _name(node) in SET_UP:
            return []
        if isinstance(node.func, ast.Name):
            return self._by_name(node.func.id)
        if not (isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)):
            return []
        of, method = node.func.value.id, node.func.attr
        if of in ("self", "cls"):
            found = self._package.method(self._scope.owner, method)
        elif self._package.imports[self._scope.module].get(of, ("", ""))[0] == "":
            found = self._package.method(_kind(self._scope, of) or of, method)
        else:
            found = self._package.named(of, method)
        return [found] if found else []

    def _by_name(self, name: str) -> list[Scope]:
        scope: Scope | None = self._scope
        while scope:
            if inner := self._package.inside(scope, name):
                return [inner]
            kind = _kind(scope, name)
            for callback in CALLBACKS:
                if callback in kind:
                    return self._package.returning(callback)
            scope = scope.outer
        module, original = self._package.imports[self._scope.module].get(
            name, (self._scope.module, name)
        )
        found = self._package.named(module, original)
        return [found] if found else []


def package_in(folder: Path, changed: Mapping[str, str] | None = None) -> Package:
    """Read the participants' modules in *folder*; *changed* replaces the text of some."""
    sources = {
        path.stem: path.read_text("utf-8")
        for path in sorted(folder.glob("*.py"))
        if path.stem not in STAGE and not path.stem.startswith("faults")
    }
    return Package({**sources, **(changed or {})})


def points_in(source: str) -> list[str]:
    """The names of the points that *source* reaches, in order; a name that is no literal is ""."""
    return [
        str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and _name(node) == "reach"
    ]


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _imported(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delivery"):
            for alias in node.names:
                module = (node.module or "").partition(".")[2] or alias.name
                yield alias.asname or alias.name, (module, alias.name)


def _name(node: ast.expr) -> str:
    func = node.func if isinstance(node, ast.Call) else node
    return getattr(func, "id", "") or getattr(func, "attr", "")


def _writes(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute) or not node.func.attr.startswith("execute"):
        return False
    statement = node.args[0] if node.args else None
    text = statement.value if isinstance(statement, ast.Constant) else ""
    return ast.unparse(node.func.value) != "tx" and str(text).lstrip().upper().startswith(WRITES)


def _kind(scope: Scope, name: str) -> str:
    """The annotation of a parameter."""
    arguments = scope.node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.arg == name and each.annotation:
            return ast.unparse(each.annotation).strip("'\"")
    return ""


def _is_manager(node: Function) -> bool:
    return any("contextmanager" in ast.unparse(each) for each in node.decorator_list)
