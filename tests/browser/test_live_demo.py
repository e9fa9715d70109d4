"""The presenter's page: make trouble with a click, see where every message is, see it heal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pika.exceptions import AMQPError
from playwright.sync_api import Route, expect
from support.browser import Live
from support.exchange import environment

from delivery.broker import Broker, save
from delivery.cast import Cast
from delivery.connection import BrokerSettings, connect

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def twice(stage: Live) -> int:
    """How many second copies the audit has recognised."""
    found = re.search(
        r"(\d+) twice", stage.page.locator('[data-node="audit.store"]').text_content()
    )
    return int(found[1]) if found else 0


def test_a_killed_catalogs_queue_grows_and_empties_when_it_is_back(stage: Live) -> None:
    """The audit goes on; the ledger's difference stays 0, and what waited returns to 0."""
    stage.act("kill catalog")
    expect(stage.page.locator("#cast")).to_contain_text("ended")
    stage.act("burst")
    stage.await_number("catalog", "ready", 100)
    stage.await_number("audit", "applied", 100)
    expect(stage.node("catalog.queue")).to_have_text("100")
    expect(stage.verdict).to_have_text("100 on the way")
    stage.await_number("catalog", "difference", 0)
    stage.act("start catalog")
    for row, number in (("ready", 0), ("applied", 100), ("in_hand", 0), ("difference", 0)):
        stage.await_number("catalog", row, number)
    expect(stage.verdict).to_have_text("Everything adds up")
    expect(stage.page.locator("#story")).to_contain_text("catalog killed")


def test_a_dead_message_is_planned_replayed_and_applied(stage: Live) -> None:
    """The plan comes first, a reason is kept, and audit gets nothing new."""
    stage.page.fill("#title", "A fragile one")
    stage.act("failing")
    expect(stage.node("catalog.dead")).to_have_text("1")
    expect(stage.verdict).to_have_text("1 dead; all else arrived")
    stage.page.locator("#latest tbody button").first.click()
    path = stage.page.locator("#path-body")
    expect(path).to_contain_text("attempt: 3, failed at: ")  # in words, not as JSON
    assert not re.search(r"[{\[]|\d{10}\.\d", path.inner_text())
    stage.page.keyboard.press("Escape")
    stage.act("heal")
    stage.act("plan catalog")
    dead = stage.page.locator("#dead")
    expect(dead).to_contain_text("exhausted: the search index is not ready")
    expect(dead).to_contain_text("no receipt: its effect is still owed")
    stage.page.fill("#why-catalog", "")
    stage.act("replay all catalog")
    expect(stage.page.locator("#said")).to_contain_text("a replay needs a reason")
    expect(dead).to_contain_text("a replay needs a reason")  # the panel above may be out of sight
    stage.page.fill("#why-catalog", "the index is back")
    stage.act("replay all catalog")
    stage.await_number("catalog", "applied", 1)
    stage.await_number("catalog", "dead", 0)
    expect(stage.page.locator("#said")).to_have_text("replayed: 1 applied")
    expect(stage.verdict).to_have_text("Everything adds up")
    stage.await_number("audit", "applied", 1)
    expect(dead).to_contain_text("Nothing is dead.")
    expect(dead).to_contain_text("replayed: 1 applied")


def test_a_late_revision_a_duplicate_and_an_unroutable_one_are_told_apart(stage: Live) -> None:
    """Stale, recognised by its receipt, returned and kept: each where it belongs."""
    stage.act("old-revision")
    stage.await_number("catalog", "stale", 1)
    stage.await_number("catalog", "applied", 1)
    stage.await_number("audit", "applied", 2)
    before = twice(stage)
    stage.act("duplicate")
    expect(stage.page.locator('[data-node="audit.store"]')).to_contain_text(f"{before + 1} twice")
    stage.act("unroutable")
    expect(stage.page.locator('[data-node="outbox"]')).to_contain_text("1 returned")
    stage.await_number("catalog", "pending", 1)
    stage.act("mend")
    stage.await_number("catalog", "pending", 0)
    stage.await_number("audit", "applied", 3)
    expect(stage.verdict).to_have_text("Everything adds up")


def test_what_others_wrote_is_text_and_never_markup(stage: Live) -> None:
    """A hostile title, and a hostile message that died: shown as they are, nothing runs."""
    stage.page.fill("#title", HOSTILE)
    stage.act("failing")
    row = stage.page.locator("#latest tbody tr").first
    expect(row.locator("button")).to_have_text(HOSTILE)
    expect(stage.node("catalog.dead")).to_have_text("1")
    stage.act("plan catalog")
    stage.page.locator("#dead summary").click()
    expect(stage.page.locator("#dead pre")).to_contain_text("<img src=x onerror=alert(1)>")
    stage.act("poison")
    expect(stage.node("audit.dead")).to_have_text("1")
    stage.act("plan audit")
    stage.page.locator("#dead summary").last.click()
    expect(stage.page.locator("#dead pre").last).to_contain_text("<img src=x onerror=alert(1)>")
    row.locator("button").click()
    expect(stage.page.locator("#path-body")).to_contain_text("confirmed")
    assert stage.page.locator("#main img, #main script, dialog img").count() == 0
    assert stage.complaints == []


def test_a_paused_one_holds_a_cut_one_comes_back_a_killed_api_is_said(stage: Live) -> None:
    """Each process can be stopped in its own way, and the page says which."""
    row = {
        name: stage.page.locator("#cast tr", has_text=name) for name in ("api", "audit", "relay")
    }
    stage.act("pause audit")
    expect(row["audit"]).to_contain_text("paused")
    stage.act("cut relay")
    expect(stage.page.locator("#said")).to_have_text("1 connections of relay cut")
    stage.act("kill api")
    expect(row["api"]).to_contain_text("ended")
    stage.page.get_by_role("button", name="Publish").click()
    expect(stage.page.locator("#said")).to_contain_text("no API answers")
    stage.act("start api")
    expect(row["api"]).to_contain_text("running")
    stage.page.keyboard.press("p")  # the focus is on a button: a key is a command
    stage.await_number("catalog", "applied", 1)
    stage.await_number("audit", "applied", 0)
    stage.act("start audit")
    stage.await_number("audit", "applied", 1)
    expect(stage.verdict).to_have_text("Everything adds up")


def test_a_broker_that_is_ours_is_restarted_and_one_that_was_given_is_not(
    breakable_broker: Broker, stage: Live, tmp_path: Path, open_page: Callable[..., Live]
) -> None:
    """Everybody comes back, and what waited in a queue before the restart is applied after it."""
    restart = '[data-action="restart-broker"]'
    expect(stage.page.locator(restart)).to_be_disabled()
    assert breakable_broker.machine is not None
    save(breakable_broker.machine, tmp_path / "broker.json")  # as `delivery broker up` leaves it
    cast = Cast(["--data", str(tmp_path)], environment(), tmp_path / "logs")
    with cast.curtain():
        demo = cast.start("demo", ["demo", "--live", "--port", "0", "--no-browser"])
        (url,) = re.findall(r"http://\S+/", demo.await_event("page at ", seconds=60))
        live = open_page(url)
        live.act("kill audit")
        live.act("burst")
        live.await_number("catalog", "applied", 100)
        live.await_number("audit", "ready", 100)
        guest = connect(BrokerSettings(url=breakable_broker.amqp_url, name="guest"))
        live.page.locator(restart).click()
        expect(live.page.locator("#said")).to_have_text("the broker was restarted", timeout=60_000)
        with pytest.raises(AMQPError):
            guest.process_data_events()
        live.await_number("audit", "ready", 100)
        live.act("start audit")
        live.await_number("audit", "applied", 100)
        expect(live.verdict).to_have_text("Everything adds up")
        live.page.keyboard.press("p")
        live.await_number("catalog", "applied", 101)
        assert demo.stop() == 0


def test_keys_are_commands_only_where_nobody_writes_and_only_if_wanted(stage: Live) -> None:
    """A title that holds a B is no burst; without its tick a key does nothing."""
    stage.page.locator("#title").focus()
    stage.page.keyboard.type("BRB")
    expect(stage.page.locator("#title")).to_have_value("BRB")
    stage.page.keyboard.press("Enter")
    stage.await_number("audit", "applied", 1)
    stage.page.locator("#keys").uncheck()
    stage.page.keyboard.press("b")
    stage.await_updates(4)
    assert stage.number("audit", "accepted") == 1
    stage.page.locator("#keys").check()
    stage.page.keyboard.press("r")
    expect(stage.cell("audit", "accepted")).to_have_text("0")
    expect(stage.page.locator("#said")).to_have_text("everything begins anew")


def test_a_page_without_the_token_changes_nothing(stage: Live) -> None:
    """Not even a script of the same browser, from the same address."""
    ask = """async (token) => (await fetch('/stage/burst', {method: 'POST', body: '{}', headers:
        {'Content-Type': 'application/json', 'X-Stage-Token': token}})).status"""
    assert stage.page.evaluate(ask, "guessed") == 403
    stage.await_updates(3)
    assert stage.number("audit", "accepted") == 0


def test_what_became_of_a_replay_is_said_also_when_the_next_plan_is_slow(stage: Live) -> None:
    """A plan of many takes its time: what it says meanwhile must not take the result's place."""
    stage.act("poison")
    expect(stage.node("catalog.dead")).to_have_text("1")
    stage.act("plan catalog")
    expect(stage.page.locator('[data-action="replay all catalog"]')).to_be_visible()
    held: list[Route] = []
    stage.page.route("**/stage/plan", lambda route: held.append(route))
    stage.act("replay all catalog")
    said, panel = stage.page.locator("#said"), stage.page.locator("#dead")
    expect(said).to_have_text("Open and plan catalog's dead: working on it ...")
    held[0].continue_()
    expect(said).to_have_text("replayed: 1 dead again")
    expect(panel).to_contain_text("replayed: 1 dead again")
    expect(stage.page.locator('[data-action="plan catalog"]')).to_be_focused()


def test_the_focus_stays_where_somebody_works_with_the_keyboard(stage: Live) -> None:
    """A button that was pressed keeps it; where one disappears, its row's first button has it."""
    focus = "document.activeElement.dataset.action"
    for action, after in (
        ("ledger", "ledger"),
        ("kill audit", "start audit"),
        ("start audit", "pause audit"),
    ):
        stage.page.locator(f'[data-action="{action}"]').focus()
        stage.page.keyboard.press("Enter")
        expect(stage.page.locator(f'[data-action="{after}"]')).to_be_focused()
        if after != action:
            expect(stage.page.locator(f'[data-action="{action}"]')).to_be_hidden()
    assert stage.page.evaluate(focus) == "pause audit"
