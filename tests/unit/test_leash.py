"""A director that is killed takes its actors with it; others are left alone."""

from __future__ import annotations

import subprocess
import sys

from support.waiting import wait_for

from delivery import leash
from delivery.process import Process

DIRECTOR = f"""
import subprocess, sys, time
from {leash.__name__} import Leash
leash = Leash()
actor = subprocess.Popen(["sleep", "600"])
bystander = subprocess.Popen(["sleep", "600"])
leash.add(actor.pid)
print(actor.pid, bystander.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_director_takes_its_actors_with_it() -> None:
    director = subprocess.Popen([sys.executable, "-c", DIRECTOR], stdout=subprocess.PIPE, text=True)
    assert director.stdout is not None
    actor, bystander = (Process.of(int(pid)) for pid in director.stdout.readline().split())
    try:
        assert actor.alive()
        director.kill()
        director.wait()
        wait_for(lambda: not actor.alive(), "the actor ends")
        assert bystander.alive()
    finally:
        director.stdout.close()
        for process in (actor, bystander):
            process.kill()


def test_what_has_ended_before_is_forgotten_even_if_its_pid_is_used_again() -> None:
    """Known by pid and birth: the same pid, born later, is a stranger."""
    ended = subprocess.Popen(["true"])
    known = Process.of(ended.pid)
    ended.wait()
    assert not known.alive()
    assert not Process(known.pid, "another birth").alive()
