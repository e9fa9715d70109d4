"""How a process is, from what it logs; and how another process reads it."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from delivery.health import BEAT, Health
from delivery.vitals import STALLED_AFTER, State, healths


@pytest.fixture
def health(tmp_path: Path) -> Iterator[Health]:
    with closing(Health("relay", tmp_path)) as own:
        yield own


def say(health: Health, event: str, **fields: object) -> tuple[State, str]:
    record = logging.makeLogRecord({"msg": event, **fields})
    health.emit(record)
    return health.vital.state, health.vital.reason


def test_each_state_by_the_record_that_tells_it(health: Health) -> None:
    """The broker away, the broker in alarm, the own store: three different things to mend."""
    assert health.vital.state is State.STARTING
    assert say(health, "catalog.ready") == (State.STARTING, "")  # somebody else's
    assert say(health, "relay.ready") == (State.READY, "")
    for event in ("connection.lost", "channel.closed", "consuming.ended"):
        assert say(health, event, error=f"no {event}") == (State.RECONNECTING, f"no {event}")
    assert say(health, "access.refused", error="no right") == (State.REFUSED, "no right")
    assert say(health, "relay.ready") == (State.READY, "")
    assert say(health, "connection.blocked", reason="low on memory") == (
        State.BLOCKED,
        "low on memory",
    )
    assert say(health, "connection.unblocked") == (State.READY, "")
    for event in ("store.unavailable", "copy.not_confirmed", "work.paused"):
        assert say(health, event, error=f"no {event}") == (State.PAUSED, f"no {event}")
    assert say(health, "recipient.paused", reason="asked to") == (State.PAUSED, "asked to")
    assert say(health, "recipient.resumed") == (State.READY, "")
    assert say(health, "relay.cycle") == (State.READY, "")


def test_what_is_read_is_what_is_and_a_dead_process_is_not_running(tmp_path: Path) -> None:
    """The lock ends with the process: a file that a crash left behind is nobody's."""
    assert healths(tmp_path, "relay") == []
    program = (
        "import os, pathlib, sys; from delivery.health import Health;"
        f"h = Health('relay', pathlib.Path({str(tmp_path)!r}));"
        "print('up', flush=True); sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    (vital,) = healths(tmp_path, "relay")
    assert (vital.state, vital.pid) == (State.STARTING, child.pid)
    assert healths(tmp_path, "catalog") == []
    child.communicate()
    assert len(list(tmp_path.iterdir())) == 1
    assert healths(tmp_path, "relay") == []
    with closing(Health("relay", tmp_path)):
        assert len(list(tmp_path.iterdir())) == 1  # what was left is cleared
    assert list(tmp_path.iterdir()) == []


def test_no_sign_of_life_is_not_ready(health: Health, tmp_path: Path) -> None:
    """A loop that hangs logs nothing any more; while it reconnects, it need not give any."""
    (file,) = tmp_path.iterdir()

    def old() -> State:
        before = file.stat().st_mtime - STALLED_AFTER - 1
        os.utime(file, (before, before))
        return healths(tmp_path, "relay")[0].state

    say(health, "relay.ready")
    assert old() is State.STALLED
    assert "no sign of life for 3" in healths(tmp_path, "relay")[0].reason
    health._beaten -= STALLED_AFTER + 1
    assert (health.vital.state, health.vital.alive) == (State.STALLED, False)
    health.beat()
    assert healths(tmp_path, "relay")[0].state is health.vital.state is State.READY
    say(health, "connection.lost", error="e")
    assert old() is State.RECONNECTING


def test_what_a_full_disk_keeps_it_from_writing_is_no_old_state(
    health: Health, tmp_path: Path
) -> None:
    """Somebody who runs and can't say how he is, is not ready; and says it as soon as he can."""
    say(health, "relay.ready")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        say(health, "store.unavailable", error="it is full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (found,) = healths(tmp_path, "relay")
    assert (found.state, found.pid) == (State.PAUSED, os.getpid())
    assert "is the disk full?" in found.reason
    health._beaten -= BEAT
    health.beat()
    assert healths(tmp_path, "relay")[0].reason == "it is full"


def test_in_a_shared_folder_each_machine_asks_for_its_own(health: Health, tmp_path: Path) -> None:
    """Another container's relay is not this one's; but it is told of, if there is no other."""
    (own,) = tmp_path.iterdir()
    other = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import pathlib, socket, sys; socket.gethostname = lambda: 'other';"
            "from delivery.health import Health;"
            f"h = Health('relay', pathlib.Path({str(tmp_path)!r}));"
            "print('up', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    other.stdout.readline()
    assert [vital.pid for vital in healths(tmp_path, "relay")] == [os.getpid()]
    health.close()
    assert [vital.host for vital in healths(tmp_path, "relay")] == ["other"]
    other.communicate()
    assert not own.exists()


def test_the_file_holds_what_a_script_can_read(health: Health, tmp_path: Path) -> None:
    """JSON, replaced as a whole: a shorter reason leaves no rest of a longer one."""
    (file,) = tmp_path.iterdir()
    for reason in ("long " * 50, "short"):
        say(health, "connection.blocked", reason=reason)
        assert json.loads(file.read_text())["reason"] == reason
