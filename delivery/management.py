"""Ask the management plugin's HTTP API."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from delivery.address import tls_context
from delivery.addresses import addresses
from delivery.errors import DeliveryError

__all__ = ["Management", "Sample"]


class Sample(NamedTuple):
    """What the plugin tells of a queue, as of some seconds ago; None: nothing."""

    unacked: int | None
    kind: str | None  # classic, quorum


@dataclass(frozen=True)
class Management:
    """Where the API is; the login is the one in *url*, else the one of *amqp_url*."""

    url: str = field(repr=False)
    amqp_url: str = field(repr=False)

    @property
    def _amqp(self) -> SplitResult:
        return urlsplit(addresses(self.amqp_url)[0])  # of a cluster: login and vhost are the same

    @property
    def vhost(self) -> str:
        """The virtual host as a part of a path: ``%2F`` is the usual one."""
        return self._amqp.path[1:] or "%2F"

    def get(self, path: str) -> tuple[Any, http.client.HTTPMessage]:
        """Return the answer's JSON and headers for *path*, such as ``/api/overview``.

        Raises OSError if there is no such answer, whatever is wrong with the address or the server.
        """
        return self._ask("GET", path, None)

    def put(self, path: str, value: object) -> None:
        """Set what *path* names, such as ``/api/policies/%2F/name``. Raises OSError."""
        self._ask("PUT", path, json.dumps(value).encode())

    def delete(self, path: str) -> None:
        """Remove what *path* names. Raises OSError."""
        self._ask("DELETE", path, None)

    def _ask(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[Any, http.client.HTTPMessage]:
        try:
            parts, amqp = urlsplit(self.url), self._amqp
            user = parts if parts.username else amqp
            said = f"{unquote(user.username or '')}:{unquote(user.password or '')}"
            login = base64.b64encode(said.encode()).decode()
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            port = f":{parts.port}" if parts.port else ""
            request = urllib.request.Request(  # noqa: S310 - the operator's own address
                f"{parts.scheme}://{host}{port}{path}",
                data=body,
                method=method,
                headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
            )
            # No proxy: the broker is asked directly, and its password goes nowhere else.
            handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
            if parts.scheme == "https":
                handlers.append(urllib.request.HTTPSHandler(context=tls_context(self.amqp_url)))
            direct = urllib.request.build_opener(*handlers)
            with _named(f"{host}{port}", user), direct.open(request, timeout=5) as answer:
                return json.loads(answer.read() or b"null"), answer.headers
        except (http.client.HTTPException, ValueError, DeliveryError) as error:
            raise OSError(f"no management API there: {error!r}") from error

    def unacked(self, queue: str) -> int | None:
        """Return the queue's unacked messages as of some seconds ago; None if it has no sample."""
        try:
            return self.sample(queue).unacked
        except OSError:
            return None

    def sample(self, queue: str) -> Sample:
        """Return that and the queue's kind. Raises OSError if the plugin does not answer at all."""
        told = self.queue(queue) or {}
        count, kind = told.get("messages_unacknowledged"), told.get("type")
        return Sample(
            count if isinstance(count, int) else None, kind if isinstance(kind, str) else None
        )

    def queue(self, name: str) -> dict[str, Any] | None:
        """Return what is told of a queue; None: the plugin has not heard of it. Raises OSError."""
        try:
            found, _ = self.get(f"/api/queues/{self.vhost}/{quote(name, safe='')}")
        except urllib.error.HTTPError as answer:
            if answer.code == 404:
                return None
            raise
        if not isinstance(found, dict):
            raise OSError(f"nothing is told of the queue {name!r}: {found!r:.80}")
        return found


@contextmanager
def _named(where: str, user: SplitResult) -> Iterator[None]:
    """Say in the error's words who was asked, and as whom."""
    try:
        yield
    except urllib.error.HTTPError as answer:  # it stays one: callers ask for its code
        answer.msg = f"{answer.msg} (the management API at {where}, to user {user.username!r})"
        raise
    except urllib.error.URLError as error:
        raise OSError(f"no management API at {where}: {error.reason}") from error
    except OSError as error:  # it took the question, and gave no answer
        raise OSError(f"no management API at {where}: {error}") from error
