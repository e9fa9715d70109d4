"""The page that the plain API serves: it sees and says what it sees, and gets lost servers back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support.browser import MISSING, Live, program
from support.exchange import environment

from delivery.cast import Cast
from delivery.client import post
from delivery.process import free_ports


def publish(url: str, key: str, title: str = "Title") -> None:
    command = {"material_id": "m-1", "title": title, "slug": "s", "author": "A"}
    assert post(url, command, key)[0] == 202


def test_a_lost_server_is_said_and_what_happened_meanwhile_is_shown(
    tmp_path: Path, open_page: Callable[..., Live]
) -> None:
    """Killed: the page says so, and that it is old. Back: the page catches up by itself."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = ["--data", str(tmp_path / "data")]
    cast = Cast(options, environment(), tmp_path / "logs")
    with cast.curtain():
        command = ["api", "--port", str(port)]
        cast.start("api", command).await_event("api.ready")
        publish(url, "one")
        live = open_page(url)
        expect(live.node("api")).to_have_text("1")
        lost = live.page.locator("#lost")
        expect(lost).to_be_hidden()
        cast["api"].kill()
        expect(lost).to_contain_text("The server has not answered since")
        expect(live.page.locator("body.stale")).to_be_visible()
        live.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(lost).to_be_in_viewport()  # wherever somebody reads
        cast.start("api", command).await_event("api.ready")
        publish(url, "two")
        expect(live.node("api")).to_have_text("2")
        expect(lost).to_be_hidden()
        expect(live.page.locator("body.stale")).to_have_count(0)


def test_the_plain_page_only_looks_and_says_what_it_cannot_see(
    tmp_path: Path, open_page: Callable[..., Live]
) -> None:
    """No broker is known: question marks, its reason, and no button that acts."""
    cast = Cast(["--data", str(tmp_path / "data")], environment(), tmp_path / "logs")
    with cast.curtain():
        api = cast.start("api", ["api", "--port", "0"])
        url = api.await_event("api.ready").rpartition("url=")[2].strip()
        publish(url, "one", "<b>bold</b>")
        live = open_page(url)
        expect(live.verdict).to_have_text("Can't tell: the broker is not seen")
        expect(live.page.locator("#blind")).to_contain_text("no broker is running here")
        expect(live.node("catalog.queue")).to_have_text("?")
        expect(live.cell("catalog", "difference")).to_have_text("?")
        expect(live.page.locator("[data-demo]")).to_be_hidden()
        assert live.page.locator("main [data-action]").count() == 0
        title = live.page.get_by_role("button", name="<b>bold</b>")
        title.press("Enter")  # from the keyboard
        expect(live.page.locator("#path-body")).to_contain_text("not visible")
        live.page.keyboard.press("Escape")
        expect(live.page.locator("#path")).to_be_hidden()
        live.page.fill("#find-id", "none such")
        live.page.keyboard.press("Enter")
        expect(live.page.locator("#path-body")).to_contain_text(
            "no event, request or material has the id"
        )
        judges_old_figures(live)


def judges_old_figures(live: Live) -> None:
    """The page's own judgement, of a state that no test can hold still."""
    sums = {"on_the_way": 3, "in_hand": 3, "dead": 0, "difference": 0, "exact": False}
    fresh = {"seen": True, "why": "", "age": 0.3}
    catalog = {"recipient": "catalog", "sum": sums}
    now = {"stores": fresh, "broker": fresh, "outbox": {"pending": {}}, "recipients": [catalog]}
    ask = "async ([what, ...rest]) => (await import('/live/files/ledger.js'))[what](...rest)"

    def asked(what: str, *rest: object) -> object:
        return live.page.evaluate(ask, [what, *rest])

    calm = {**catalog, "sum": {**sums, "on_the_way": 0, "in_hand": 0}}
    at_rest = {**now, "recipients": [calm]}
    assert asked("verdict", now) == ["3 on the way", "warn"]
    assert asked("verdict", at_rest) == ["Everything adds up", "good"]
    old = {**at_rest, "broker": {**fresh, "age": 12.4}}
    assert asked("verdict", old) == ["Everything adds up, 12 s ago", "warn"]
    states = {state: [{"name": "catalog", "state": state}] for state in ("running", "ended")}
    assert asked("hand", {**now, "cast": states["running"]}, catalog) == 3
    assert asked("hand", {**now, "cast": states["ended"]}, catalog) is None


def test_without_a_browser_the_tests_say_how_to_get_one() -> None:
    """A browser test is never skipped."""
    with pytest.raises(pytest.fail.Exception, match="install it") as failed:
        program(lambda _: None)
    assert str(failed.value) == MISSING
    assert (
        program(lambda name: f"/bin/{name}" if "google" in name else None) == "/bin/google-chrome"
    )
