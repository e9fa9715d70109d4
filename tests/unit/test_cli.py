"""The command line: helps that are true, errors in one sentence, output that machines can read."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from rich.live import Live
from support.exchange import delivery, environment

from delivery import __version__, cli
from delivery.cast import Cast
from delivery.cli import app
from delivery.stages import modules, stages_file
from delivery.stores import Stores
from delivery.terminal import console

Words = tuple[str, ...]
ROOT = typer.main.get_command(app)
NOBODY = "amqp://guest:guest@127.0.0.1:9/%2F"  # discard: nothing listens there


def commands(node: click.Command, path: Words = ()) -> dict[Words, click.Command]:
    """Every command and group, by its words."""
    found = {path: node}
    for name, child in getattr(node, "commands", {}).items():
        found |= commands(child, (*path, name))
    return found


ALL = commands(ROOT)
LEAVES = {path: node for path, node in ALL.items() if not getattr(node, "commands", None)}
each_leaf = pytest.mark.parametrize("path", LEAVES, ids=" ".join)


def assert_one_sentence(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 1, one line on standard error that begins with ``error:``, nothing else."""
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert re.match(r"error: \S", lines[0])
    for word in words:
        assert word in lines[0]


# -- help


@pytest.mark.parametrize("path", [path for path in ALL if path not in LEAVES], ids=" ".join)
def test_a_group_says_the_whole_first_sentence_of_each_command(path: Words) -> None:
    shown = " ".join(delivery(*path, "--help").stdout.split())
    for name, child in ALL[path].commands.items():  # type: ignore[attr-defined]
        sentence = " ".join(str(child.help).split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        assert f"{name} {sentence}" in shown


def test_python_m_delivery_is_the_same_program(tmp_path: Path) -> None:
    """`python -m delivery` works from any folder, and says the package's version."""
    for argv in (
        [sys.executable, "-m", "delivery"],
        [str(Path(sys.executable).parent / "delivery")],
    ):
        ended = subprocess.run(
            [*argv, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert ended.stdout == f"delivery {__version__}\n"


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "delivery")
def test_every_command_explains_itself(path: Words) -> None:
    """Each has a help text, and each command in it an example; groups list their commands."""
    text = " ".join((ALL[path].help or "").split())
    assert len(text) > 20
    if path in LEAVES:
        assert "Example: delivery " in text
    else:
        assert len(ALL[path].commands) > 1


def test_help_is_shown_and_does_not_load_the_whole_world() -> None:
    """Help of the program and of a group end with 0, in a moment: no broker client is loaded."""
    for words in ((), ("dead",), ("dead", "replay"), ("topology",), ("broker",)):
        ended = delivery(*words, "--help")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith(" ".join(["Usage: delivery", *words])) or (
            "Usage: " in ended.stdout.splitlines()[0]
        )
    probe = (
        "import atexit, sys, delivery.cli; sys.argv[1:] = ['--help']; "
        "loaded = lambda: sorted({'pika', 'pydantic', 'fastapi', 'rich'} & set(sys.modules)); "
        "atexit.register(lambda: print(loaded())); delivery.cli.main()"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", probe], env=environment(), capture_output=True, text=True, check=True
    )
    assert loaded.stdout.splitlines()[-1] == "[]"


def test_ctrl_c_before_the_command_began_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the options are read first, which takes a moment; 130 is what a shell expects."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_ctrl_c_while_the_program_is_imported_is_no_traceback() -> None:
    """Half a second in which nothing of ours runs yet but `__main__`."""
    program = """
import sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "delivery.cli_look":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from delivery.__main__ import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def examples() -> list[tuple[Words, str]]:
    return [
        (path, line.strip().removeprefix("Example: "))
        for path, node in LEAVES.items()
        for line in (node.help or "").splitlines()
        if line.strip().startswith("Example: ")
    ]


@pytest.mark.parametrize(("path", "example"), examples(), ids=lambda value: str(value)[:60])
def test_every_example_is_a_command_that_exists(path: Words, example: str) -> None:
    """The example in a help text is that command, and its words are accepted."""
    program, *words = shlex.split(example.partition(">")[0])
    assert program == "delivery"
    assert tuple(words[: len(path)]) == path
    LEAVES[path].make_context(path[-1], words[len(path) :], resilient_parsing=False)


def test_the_readme_names_only_commands_that_exist() -> None:
    """Each `delivery ...` in README is a command."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:^    |`)delivery ((?:[a-z]+ ?)+)", readme, re.M)
    assert named
    for words in named:
        first, *rest = words.split()
        assert (first,) in ALL
        if (first,) not in LEAVES:
            assert (first, *rest[:1]) in ALL


# -- errors


@pytest.mark.parametrize(
    "words",
    [
        ("ledger",),
        ("reconcile", "catalog"),
        ("dead", "list", "catalog"),
        ("dead", "plan", "audit"),
        ("dead", "drop", "catalog", "--all", "--reason", "x"),
    ],
    ids=" ".join,
)
def test_without_a_broker_a_command_says_how_to_get_one(tmp_path: Path, words: Words) -> None:
    """Nothing is started behind the reader's back; the way to one is in the sentence."""
    ended = delivery("--data", str(tmp_path / "data"), *words)
    assert_one_sentence(ended, "delivery broker up", "DELIVERY_AMQP_URL")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (NOBODY, "127.0.0.1:9"),
        ("amqp://no-such-host.invalid/", "no-such-host.invalid"),
        ("nonsense", "amqp://user:password@"),
        ("http://127.0.0.1:9/", "amqp://user:password@"),
        ("amqp://a:b@127.0.0.1:abc/", "amqp://user:password@"),
        ("amqp://[::1", "amqp://user:password@"),
    ],
)
def test_a_wrong_broker_url_is_said_in_one_sentence(tmp_path: Path, url: str, word: str) -> None:
    """Nobody there, no such host, no URL at all: never a traceback, and no password is shown."""
    for words in (("ledger",), ("dead", "list", "catalog")):
        ended = delivery(
            *("--data", str(tmp_path), *words), environ=environment(DELIVERY_AMQP_URL=url)
        )
        assert_one_sentence(ended, word)
        assert ":guest@" not in ended.stderr
        assert "a:b@" not in ended.stderr


def test_a_screen_that_is_drawn_anew_cuts_nothing_off() -> None:
    """The end of a reason is often the part that helps."""
    own = console(wrap=True)
    own.width = 40
    reason = "no broker at 127.0.0.1:9: [Errno 111] Connection refused"
    with own.capture() as drawn, Live(reason, console=own, auto_refresh=False):
        pass
    assert " ".join(drawn.get().split()) == reason


def test_an_empty_trail_is_said(tmp_path: Path) -> None:
    """An empty answer could be taken for a command that failed."""
    shown = delivery("--data", str(tmp_path), "dead", "trail")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr == "the trail is empty\n"


def test_the_status_shows_the_stores_while_the_broker_is_away(tmp_path: Path) -> None:
    """When it is needed most: what is pending is told, the rest is not visible, exit 1."""
    environ = environment(DELIVERY_AMQP_URL=NOBODY)
    shown = delivery("--data", str(tmp_path), "status", environ=environ)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "accepted 0, confirmed 0, pending 0" in shown.stdout
    assert re.search(r"^ready +not visible +not visible", shown.stdout, re.M)
    assert "the broker was not asked: no broker at 127.0.0.1:9" in shown.stdout
    told = delivery("--data", str(tmp_path), "status", "--json", environ=environ)
    assert told.returncode == 1
    assert "no broker at 127.0.0.1:9" in json.loads(told.stdout)["error"]


def test_the_status_shows_the_stores_while_no_broker_is_known(tmp_path: Path) -> None:
    """The same screen; the way to a broker is in its last lines."""
    shown = delivery("--data", str(tmp_path), "status")
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "accepted 0, confirmed 0, pending 0" in shown.stdout
    assert re.search(r"^ready +not visible +not visible", shown.stdout, re.M)
    assert re.search(
        r"^the broker was not asked: .*delivery broker up.*DELIVERY_AMQP_URL", shown.stdout, re.M
    )
    told = delivery("--data", str(tmp_path), "status", "--json")
    assert (told.returncode, json.loads(told.stdout)["recipients"][0]["difference"]) == (1, None)


@pytest.mark.parametrize(
    "words",
    [("receive",), ("dead", "list"), ("dead", "plan"), ("reconcile",)],
    ids=" ".join,
)
def test_an_unknown_recipient_is_named_before_a_broker_is_looked_for(
    tmp_path: Path, words: Words
) -> None:
    """The sentence says which recipients there are; no broker is waited for or started."""
    ended = delivery(
        *("--data", str(tmp_path), *words, "serach"), environ=environment(DELIVERY_AMQP_URL=NOBODY)
    )
    assert_one_sentence(ended, "'serach'", "catalog or audit")


@pytest.mark.parametrize("retries", ["", "1,x", "0", "-5", "1.5", "1000,", f"1,{2**32}"])
def test_retry_delays_that_are_none(tmp_path: Path, retries: str) -> None:
    """Milliseconds, at least 1 each, at most 49 days; said before anything is declared."""
    ended = delivery("--data", str(tmp_path), "--retries", retries, "topology", "lint")
    assert_one_sentence(ended, "milliseconds")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{nope", "line 2"),
        ("[]", "line 2"),
        ('{"title": "no id"}', "material_id"),
        ('{"material_id": 5}', "material_id"),
    ],
)
def test_a_bad_line_stops_before_anything_is_sent(tmp_path: Path, line: str, word: str) -> None:
    """The file is read whole first; the sentence names file and line."""
    file = tmp_path / "materials.jsonl"
    file.write_text(f'{{"material_id": "m-1"}}\n{line}\n', encoding="utf-8")
    for words in (
        ("publish", str(file), "--url", "http://127.0.0.1:9"),
        ("demo", "--file", str(file)),
    ):
        assert_one_sentence(delivery("--data", str(tmp_path), *words), str(file), word)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, or not UTF-8: one sentence with its name."""
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"material_id": "\xe9"}\n')
    for file in (tmp_path / "missing.jsonl", tmp_path, latin):
        assert_one_sentence(delivery("publish", str(file)), str(file))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "nonsense", "http://127.0.0.1:99999", "http://["]
)
def test_an_api_that_is_not_there(tmp_path: Path, url: str) -> None:
    """`publish` says where it looked, and how to start one."""
    file = tmp_path / "materials.jsonl"
    file.write_text('{"material_id": "m-1"}\n', encoding="utf-8")
    assert_one_sentence(delivery("publish", str(file), "--url", url), url, "delivery api")


def test_something_else_answers_instead_of_the_api(tmp_path: Path) -> None:
    """A port where no HTTP is spoken is said to be no API, without a traceback."""
    file = tmp_path / "materials.jsonl"
    file.write_text('{"material_id": "m-1"}\n', encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        argv = [sys.executable, "-m", "delivery", "publish", str(file), "--url", url]
        with subprocess.Popen(
            argv, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            other.settimeout(10)
            peer, _ = other.accept()
            with peer:
                peer.sendall(b"AMQP\0\0\x09\x01")
            out, err = process.communicate(timeout=20)
    ended = subprocess.CompletedProcess(argv, process.returncode, out, err)
    assert_one_sentence(ended, url)


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "replay", "catalog", "--all"),
        ("dead", "drop", "catalog", "--id", "x"),
        ("publish",),
        ("api", "--port", "70000"),
        ("receive", "catalog", "--prefetch", "0"),
        ("receive", "catalog", "--batch", "65536"),  # AMQP could not ask for so many
        ("relay", "--batch", "99999999999999999999"),
        ("dead", "trail", "--limit", "99999999999999999999"),
        ("reconcile", "catalog", "--grace", "-1"),
        ("stage", "five", "x"),
        ("nonsense",),
        ("status", "--nonsense"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(words: Words) -> None:
    """A missing reason, a value out of range, an unknown word: exit code 2, and no traceback."""
    ended = delivery(*words)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "Usage: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """The sentence says so, and the file is left as it was."""
    content = "this is somebody's text, and long enough to be looked at as a database header " * 3
    for participant, words in (("publisher", ("api",)), ("catalog", ("dead", "list", "catalog"))):
        file = Stores(tmp_path).path(participant)
        file.write_text(content, encoding="utf-8")
        ended = delivery(
            *("--data", str(tmp_path), *words), environ=environment(DELIVERY_AMQP_URL=NOBODY)
        )
        assert_one_sentence(ended, "not a database")
        assert file.read_text(encoding="utf-8") == content


def test_a_file_of_newer_code_is_not_touched(tmp_path: Path) -> None:
    """Refused, with both versions: an old program must not write into what it does not know."""
    Stores(tmp_path).open("publisher").close()
    with contextlib.closing(sqlite3.connect(Stores(tmp_path).path("publisher"))) as store:
        store.execute("UPDATE schema_version SET version = 99 WHERE name = 'outbox'")
        store.commit()
    ended = delivery("--data", str(tmp_path), "api", "--port", "0")
    assert_one_sentence(ended, "version 99", "newer")


@pytest.mark.parametrize(
    "words", [("api", "--port", "0"), ("dead", "list", "catalog")], ids=" ".join
)
def test_a_data_folder_that_cannot_be_one(tmp_path: Path, words: Words) -> None:
    """A file is in its place, or above it, or nobody may make it: one sentence with the path."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "data", Path("/proc/nobody/data")):
        ended = delivery(
            *("--data", str(folder), *words), environ=environment(DELIVERY_AMQP_URL=NOBODY)
        )
        assert_one_sentence(ended, str(folder))


# -- output


def test_nobody_reads_the_output_any_more() -> None:
    """`| head -1` ends the program without a traceback."""
    command = f"{shlex.quote(sys.executable)} -m delivery topology asyncapi | head -1"
    ended = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("{\n", "")


def test_a_picture_needs_no_broker(tmp_path: Path) -> None:
    """diagram, lint and asyncapi work without any broker, and leave no file."""
    data = tmp_path / "data"
    for words in (("topology", "diagram"), ("topology", "lint"), ("topology", "asyncapi")):
        ended = delivery("--data", str(data), "--namespace", "mine", *words)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "mine.catalog" in ended.stdout or words == ("topology", "lint")
    assert not data.exists()


def test_what_is_for_machines_can_be_parsed(tmp_path: Path) -> None:
    """--json of the commands that need no broker; the others are parsed in tests/broker."""
    doctor = delivery("--data", str(tmp_path), "doctor", "--json")
    assert {check["name"] for check in json.loads(doctor.stdout)} >= {"Python", "pika"}
    status = delivery("--data", str(tmp_path), "broker", "status", "--json")
    assert (status.returncode, json.loads(status.stdout)) == (1, {"running": False})
    assert json.loads(delivery("topology", "asyncapi").stdout)["asyncapi"] == "3.0.0"


def test_a_broker_that_does_not_answer_is_reported_as_such(tmp_path: Path) -> None:
    """broker status: exit 1, and which one it would be."""
    ended = delivery(
        *("--data", str(tmp_path), "broker", "status", "--json"),
        environ=environment(DELIVERY_AMQP_URL=NOBODY),
    )
    said = json.loads(ended.stdout)
    assert (ended.returncode, said["running"], said["kind"]) == (1, False, "given")


# -- the package cut after a lesson


def test_the_package_of_a_lesson_can_be_imported(tmp_path: Path) -> None:
    """`delivery stage 5 DIR`: every module is there and imports, with nothing of later lessons."""
    target = tmp_path / "after"
    ended = delivery("stage", "5", str(target))
    assert ended.returncode == 0
    names = ended.stdout.split()
    rows = modules(stages_file().read_text(encoding="utf-8"))
    assert names == [row.name for row in rows if row.lesson <= 5]
    written = {path.stem for path in (target / "delivery").glob("*.py")}
    assert written == {"__init__", *names}

    program = "import delivery; print(delivery.__file__);" + "".join(
        f"import delivery.{name};" for name in names
    )
    imported = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert imported.stderr == ""
    assert imported.stdout.strip() == str(target / "delivery" / "__init__.py")


def test_a_lesson_or_folder_that_will_not_do(tmp_path: Path) -> None:
    """An unknown lesson, or a folder with something in it: nothing is written."""
    (tmp_path / "mine.txt").touch()
    assert_one_sentence(delivery("stage", "99", str(tmp_path / "new")), "99")
    assert_one_sentence(delivery("stage", "5", str(tmp_path)), str(tmp_path))
    assert_one_sentence(delivery("stage", "5", str(tmp_path / "mine.txt")), "mine.txt")
    assert_one_sentence(delivery("stage", "5", "/proc/nobody/after"), "/proc/nobody")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


# -- a broker that does not answer now


def test_a_recipient_waits_for_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    """A given address is not probed: the process says what is wrong, pauses, and tries again."""
    environ = environment(DELIVERY_AMQP_URL=NOBODY)
    cast = Cast(["--data", str(tmp_path / "data")], environ, tmp_path / "logs")
    with cast.curtain():
        actor = cast.start("audit", ["receive", "audit"])
        actor.await_event("connection.lost", times=2)
        assert "Connection refused" in actor.log()
        assert actor.stop() == 0


def test_a_sandbox_whose_docker_is_out_of_reach_is_not_forgotten(tmp_path: Path) -> None:
    """`broker down` must not say "done" while the container goes on running."""
    state = {"container_id": "0" * 64, "amqp_port": 1, "management_port": 2}
    record = tmp_path / "broker.json"
    record.write_text(json.dumps({"kind": "docker", "machine": state}))
    out_of_reach = environment(DOCKER_HOST="tcp://127.0.0.1:9")
    ended = delivery("--data", str(tmp_path), "broker", "down", environ=out_of_reach)
    assert ended.returncode == 1
    assert ended.stderr == "error: no Docker daemon answers: Connection refused\n"
    assert record.exists()
    looked = delivery("--data", str(tmp_path), "doctor", "--json", environ=out_of_reach)
    found = {each["name"]: each for each in json.loads(looked.stdout)}
    assert found["Docker"]["seen"] == "no Docker daemon answers: Connection refused"
    assert found["clock"]["verdict"] == "ok"


def test_watching_goes_on_without_a_broker_and_stops_when_asked(tmp_path: Path) -> None:
    """One JSON object a line for machines; the error is shown, not raised; Ctrl-C is no error."""
    command = [
        sys.executable,
        "-m",
        "delivery",
        "--data",
        str(tmp_path),
        "status",
        "--watch",
        "--json",
    ]
    watching = subprocess.Popen(
        command, env=environment(DELIVERY_AMQP_URL=NOBODY), stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    lines = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    assert all("no broker at 127.0.0.1:9" in line["error"] for line in lines)
    assert watching.wait(10) == 0


@pytest.mark.parametrize("name", ["", "a b", "-x", "n" * 101, "имя"])
def test_a_namespace_that_would_not_do_is_refused(name: str) -> None:
    """It becomes part of every name on the broker."""
    assert_one_sentence(delivery("--namespace", name, "topology", "lint"), "no namespace")


def test_what_is_not_utf_8_is_said_and_not_shown(tmp_path: Path) -> None:
    """Some terminals send it for a letter: no store could keep it. It may be a password."""
    strange = os.fsdecode(b"caf\xe9")
    data = ("--data", str(tmp_path))
    ended = delivery(*data, "dead", "drop", "catalog", "--id", "x", "--reason", strange)
    assert_one_sentence(ended, "argument 9 is not UTF-8")
    environ = environment(DELIVERY_AMQP_PASSWORD=strange, DELIVERY_AMQP_URL="amqp://a@127.0.0.1:9")
    ended = delivery(*data, "ledger", environ=environ)
    assert_one_sentence(ended, "DELIVERY_AMQP_PASSWORD is not UTF-8")
