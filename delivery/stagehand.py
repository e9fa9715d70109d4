"""Start, pause, kill and cut off the demo's processes, restart its broker, and begin anew."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence

from delivery.broker import Broker, silent
from delivery.cast import Cast
from delivery.config import Config
from delivery.connection import connect
from delivery.errors import DeliveryError
from delivery.parking import empty
from delivery.ready import wait_ready
from delivery.services import prepare
from delivery.stores import PUBLISHER
from delivery.wiretap import Wiretap

__all__ = ["Stagehand", "remove_from_broker"]

PATIENCE = 60.0  # seconds that a broker's restart may take


class Stagehand:
    """Each action waits for the one before it, and says what it did. Raises DeliveryError."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        cast: Cast,
        commands: Mapping[str, Sequence[str]],
        taps: Mapping[str, Wiretap],
    ) -> None:
        self._config = config
        self._broker = broker
        self._cast = cast
        self._commands = commands
        self._taps = taps
        self._paused: set[str] = set()
        self._starting: set[str] = set()
        self._lock = threading.Lock()
        self.resets = 0
        self.restartable = broker.ours

    def state(self) -> list[dict[str, object]]:
        """Return each process's state: starting, running, paused or ended."""
        return [
            {"name": name, "state": self._state(name), "line": name in self._taps}
            for name in self._commands
        ]

    def start(self, name: str) -> str:
        """Start a process that has ended, or let a paused one go on."""
        with self._lock:
            if self._state(name) == "paused":
                self._go_on(name)
                return f"{name} goes on"
            if self._state(name) != "ended":
                raise DeliveryError(f"{name} runs already")
            self._begin_all([name])
        return f"{name} started"

    def pause(self, name: str) -> str:
        """Let a process stand still (SIGSTOP): it keeps its connection and what it has in hand."""
        with self._lock:
            self._must_run(name)
            self._cast[name].process.send_signal(signal.SIGSTOP)
            self._paused.add(name)
        return f"{name} stands still"

    def kill(self, name: str) -> str:
        """Crash a process (SIGKILL)."""
        with self._lock:
            if self._state(name) == "ended":
                raise DeliveryError(f"{name} has ended already")
            self._cast[name].kill()
            self._paused.discard(name)
        return f"{name} killed"

    def cut(self, name: str) -> str:
        """Cut a process's connections to the broker."""
        if name not in self._taps:
            raise DeliveryError(f"{name} has no line to the broker")
        return f"{self._taps[name].cut()} connections of {name} cut"

    def restart_broker(self) -> str:
        """Restart the broker under the processes. Raises NotOurs if it was given to us."""
        with self._lock:
            self._broker.restart()
        return "the broker was restarted"

    def reset(self) -> str:
        """Begin anew: new processes, empty queues, empty stores.

        A broker that is away is waited for, and started if it is ours.
        """
        with self._lock:
            self._end_all()
            if self._broker.ours:
                self._broker.start()
            wait_ready(self._broker.amqp_url, silent, deadline=PATIENCE)
            remove_from_broker(self._config)
            for file in self._config.stores.data.glob("*.sqlite3*"):
                file.unlink(missing_ok=True)
            self._start_all()
            self.resets += 1
        return "everything begins anew"

    def start_all(self) -> None:
        """Start every process, and wait until each is ready."""
        with self._lock:
            self._start_all()

    def wake_all(self) -> None:
        """Let every paused process go on, so that it can be stopped."""
        for name in [*self._paused]:
            self._go_on(name)

    def _start_all(self) -> None:
        prepare(self._config, "stage")  # nobody publishes before there is a queue
        for name in (PUBLISHER, *self._recipients()):
            self._config.stores.open(name).close()
        self._begin_all([*self._commands])

    def _end_all(self) -> None:
        self.wake_all()
        for name in self._commands:
            self._cast[name].process.send_signal(signal.SIGTERM)  # at once, then wait for each
        for name in self._commands:
            self._cast.stop(name)

    def _recipients(self) -> list[str]:
        return [name for name, command in self._commands.items() if command[0] == "receive"]

    def _begin_all(self, names: Sequence[str]) -> None:
        """Start them side by side, and wait until each is ready."""
        for name in names:
            line = {"DELIVERY_AMQP_URL": self._taps[name].url} if name in self._taps else {}
            self._starting.add(name)
            self._cast.start(name, self._commands[name], **line)
        try:
            for name in names:
                self._cast[name].await_event(f"{name}.ready")
                self._starting.discard(name)
        finally:
            self._starting.difference_update(names)

    def _go_on(self, name: str) -> None:
        self._cast[name].process.send_signal(signal.SIGCONT)
        self._paused.discard(name)

    def _must_run(self, name: str) -> None:
        if (state := self._state(name)) != "running":
            raise DeliveryError(f"{name} is {state}: start it first")

    def _state(self, name: str) -> str:
        if name not in self._commands:
            raise DeliveryError(f"no process {name[:64]!r}; there are: {', '.join(self._commands)}")
        if self._cast[name].process.poll() is not None:
            self._paused.discard(name)
            return "ended"
        if name in self._starting:
            return "starting"
        return "paused" if name in self._paused else "running"


def remove_from_broker(config: Config) -> None:
    """Delete the exchange's queues, its exchange, and what is parked; the place for that stays."""
    topology = config.topology()
    with connect(config.named("demo")) as connection:
        empty(connection, config.parking)
        channel = connection.channel()
        for queue in topology.queues:
            channel.queue_delete(queue.name)
        for exchange in topology.exchanges:
            channel.exchange_delete(exchange.name)
