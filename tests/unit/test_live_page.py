"""The live page over real HTTP: what it is made of, what it is told, and who may act."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.exchange import environment
from support.loops import run

from delivery import store
from delivery.cast import Cast
from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.errors import DeliveryError
from delivery.live_page import TOKEN_HEADER
from delivery.stage_door import Order, create_stage
from delivery.stage_messages import Messages
from delivery.stages import cut_after
from delivery.stores import Stores

STATIC = files("delivery") / "static"
TOKEN = "the token of this page"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Cast, httpx.Client]]:
    cast = Cast(["--data", str(folder / "data")], environment(), folder / "logs")
    with cast.curtain():
        actor = cast.start("api", ["api", "--port", "0"])
        url = actor.await_event("api.ready").rpartition("url=")[2].strip()
        with httpx.Client(base_url=url, timeout=10, trust_env=False) as client:
            yield cast, client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """One server for the tests that leave it as it was."""
    with serving(tmp_path_factory.mktemp("live")) as (_, client):
        yield client


def publish(client: httpx.Client) -> None:
    answer = client.post(
        "/materials/m/publish",
        json={"title": "T", "slug": "s", "author": "A"},
        headers={"Idempotency-Key": uuid.uuid4().hex},
    )
    assert answer.status_code == 202


def told(client: httpx.Client, after: str = "", enough: int = 1) -> list[tuple[str, Any]]:
    """Listen until *enough* events came; return their ids and data."""
    found: list[tuple[str, Any]] = []
    with client.stream("GET", "/live/events", params={"after": after}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        number = ""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                found.append((number, json.loads(line[6:])))
                if len(found) == enough:
                    break
    return found


# -- what the page is made of


def test_the_page_and_all_its_files_come_from_the_package(client: httpx.Client) -> None:
    """Every file that is named exists, nothing is loaded from elsewhere, and nothing else runs."""
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    names = {each.name for each in STATIC.iterdir()}
    assert set(re.findall(r"/live/files/([\w.]+)", page.text)) <= names
    for name in names:
        answer = client.get(f"/live/files/{name}")
        assert answer.status_code == 200, name
        text = answer.text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert "//" not in re.sub(r"^\s*//.*|\s// .*", "", text, flags=re.M), name
        for module in re.findall(r'from "\./([\w.]+)"', text):
            assert module in names


def test_no_markup_is_ever_made_of_text() -> None:
    """No script uses what would read text as HTML, or run it."""
    for each in STATIC.iterdir():
        script = each.read_text("utf-8")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert way not in script, (each.name, way)


def test_a_file_that_is_not_there_is_said(client: httpx.Client) -> None:
    """Also one outside the folder."""
    for path in ("/live/files/none.js", "/live/files/..%2Flive.py", "/live/files/%2e%2e"):
        assert client.get(path).status_code == 404, path


def test_the_package_cut_after_the_last_lesson_holds_the_page(tmp_path: Path) -> None:
    """And the one cut before does not need it."""
    cut_after(12, tmp_path / "last")
    cut_after(11, tmp_path / "before")
    assert (tmp_path / "last/delivery/static/index.html").is_file()
    assert not (tmp_path / "before/delivery/static").exists()


# -- what it is told


def test_the_api_shows_its_store_and_says_that_it_sees_no_broker(client: httpx.Client) -> None:
    """No figure of the broker is made up."""
    publish(client)
    *_, (_, now) = told(client, enough=4)
    assert now["mode"] == "read-only"
    assert now["outbox"]["accepted"] >= 1
    assert now["outbox"]["pending"] == {"not tried": now["outbox"]["accepted"]}
    assert now["broker"]["seen"] is False
    assert "no broker is running here" in now["broker"]["why"]
    assert [each["ready"] for each in now["recipients"]] == [None, None]
    assert "cast" not in now


def test_who_comes_back_gets_the_lines_that_it_missed(client: httpx.Client) -> None:
    """The id says what was seen; an id of another server counts for nothing."""
    seen = told(client, enough=3)[-1][0]
    with client.stream("GET", "/live/events") as answer:
        lines = answer.iter_lines()
        next(lines)
        publish(client)
        for line in lines:
            if line.startswith("data: ") and "accepted" in str(json.loads(line[6:])["lines"]):
                break
    missed = [line["what"] for line in told(client, after=seen)[0][1]["lines"]]
    assert missed == ["accepted"]
    latest = told(client)[0][0]
    assert told(client, after=latest)[0][1]["lines"] == []
    other = f"another-{latest.partition('-')[2]}"
    assert told(client, after=other)[0][1]["lines"] != []


def test_an_open_stream_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    """It ends in order, without a protocol error; nobody had to be cut off."""
    with serving(tmp_path) as (cast, client), client.stream("GET", "/live/events") as answer:
        lines = answer.iter_lines()
        assert any(line.startswith("data: ") for line in lines)
        assert cast.stop("api") == 0
        list(lines)  # raises if the server cut it off
    assert "Traceback" not in cast["api"].log()
    assert "Cancel" not in cast["api"].log()


def test_a_foreign_name_sees_nothing(client: httpx.Client) -> None:
    """DNS rebinding: neither the page nor the stream."""
    for path in ("/", "/live/events", "/live/files/live.js"):
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 403


def test_the_plain_api_has_no_token_and_no_action(client: httpx.Client) -> None:
    """What changes something exists in the demo alone."""
    assert '<meta name="stage-token" content="">' in client.get("/").text
    for action in ("one", "reset", "kill"):
        answer = client.post(f"/stage/{action}", json={}, headers={TOKEN_HEADER: ""})
        assert answer.status_code == 404


# -- who may act


@pytest.fixture
def acted() -> list[Order]:
    return []


Ask = Callable[..., httpx.Response]


@pytest.fixture
def ask(acted: list[Order]) -> Ask:
    def kill(order: Order) -> str:
        acted.append(order)
        return f"{order.name} killed"

    def refuse(order: Order) -> str:
        raise DeliveryError("catalog has ended already")

    lines: list[tuple[str, str]] = []
    actions: dict[str, Callable[[Order], Any]] = {"kill": kill, "refuse": refuse}
    app = create_stage(actions, TOKEN, lambda *line: lines.append(line), "http://127.0.0.1:1")

    def ask(method: str, path: str, **request: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as own:
                return await own.request(method, path, **request)

        return run(asked())

    return ask


def test_with_the_pages_token_an_action_is_done(ask: Ask, acted: list[Order]) -> None:
    """The answer is a sentence."""
    answer = ask("POST", "/stage/kill", json={"name": "audit"}, headers={TOKEN_HEADER: TOKEN})
    assert answer.json() == {"said": "audit killed"}
    assert acted == [Order(name="audit")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {TOKEN_HEADER: ""},
        {TOKEN_HEADER: TOKEN + "x"},
        {TOKEN_HEADER: b"\xff\xfe"},
        {TOKEN_HEADER: TOKEN, "Origin": "http://evil.example"},
        {TOKEN_HEADER: TOKEN, "Origin": "null"},
        {TOKEN_HEADER: TOKEN, "Host": "evil.example"},
    ],
    ids=["none", "empty", "wrong", "bytes", "origin", "null-origin", "host"],
)
def test_nobody_else_acts(ask: Ask, acted: list[Order], headers: dict[str, Any]) -> None:
    """No token, a wrong one, another site's page, another name: 403, and nothing happens."""
    answer = ask("POST", "/stage/kill", json={"name": "audit"}, headers=headers)
    assert answer.status_code == 403
    assert acted == []


def test_what_cannot_be_done_is_said(ask: Ask, acted: list[Order]) -> None:
    """409 with the reason; 404 for no action; 422 for an order that is none; GET never acts."""
    own = {TOKEN_HEADER: TOKEN}
    refused = ask("POST", "/stage/refuse", json={}, headers=own)
    assert (refused.status_code, refused.json()["detail"]) == (409, "catalog has ended already")
    assert ask("POST", "/stage/none", json={}, headers=own).status_code == 404
    assert ask("POST", "/stage/kill", json={"nam": "x"}, headers=own).status_code == 422
    assert ask("GET", "/stage/kill", headers=own).status_code == 405
    assert ask("GET", "/publications/x").status_code == 503  # the API's process is not there
    assert acted == []


def test_a_store_that_is_locked_is_a_reason_not_an_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the door answers with 409; any other error is a 500 and a traceback in the log."""
    monkeypatch.setattr(store, "BUSY_TIMEOUT", 0.1)
    config = Config(broker=BrokerSettings(url=""), stores=Stores(tmp_path))
    messages = Messages(config, "http://127.0.0.1:1")
    with contextlib.closing(config.stores.open("catalog")) as other:
        other.execute("BEGIN IMMEDIATE")
        for act in (lambda: messages.failing(""), messages.heal):
            with pytest.raises(store.StoreUnavailable, match="locked"):
                act()
    assert not messages.trouble
