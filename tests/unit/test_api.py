"""The API over real HTTP: a server process on loopback, asked as a client would."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import socket
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.events import event
from support.exchange import delivery, environment

from delivery.cast import Actor, Cast
from delivery.handling import Effect
from delivery.inbox import once
from delivery.routes import Route
from delivery.store import BUSY_TIMEOUT
from delivery.stores import PUBLISHER, Stores

BODY = {"title": "Где сейчас сообщение?", "slug": "where-is-it", "author": "A reader"}
MIB = 1024 * 1024


@dataclass
class Api:
    """A server process, a client, and the files behind it."""

    actor: Actor
    url: str
    stores: Stores
    client: httpx.Client

    def publish(
        self, material: str = "", body: Any = BODY, *, key: str = "", **headers: str
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(
            f"/materials/{material or new_id()}/publish",
            content=content,
            headers={
                "Content-Type": "application/json",
                "Idempotency-Key": key or uuid.uuid4().hex,
                **headers,
            },
        )

    def rows(self) -> int:
        """How many publications are in the outbox."""
        with closing(self.stores.open(PUBLISHER)) as store:
            return int(store.execute("SELECT count(*) FROM outbox").fetchone()[0])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Api]:
    cast = Cast(["--data", str(folder / "data")], environment(), folder / "logs")
    with cast.curtain():
        actor = cast.start("api", ["api", "--port", "0"])
        url = actor.await_event("api.ready").rpartition("url=")[2].strip()
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
            yield Api(actor, url, Stores(folder / "data"), client)
        assert "Traceback" not in actor.log()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for the tests that leave it as it was; each works on materials of its own."""
    with serving(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def own_api(tmp_path: Path) -> Iterator[Api]:
    """A server whose files the test may lock, fill and break."""
    with serving(tmp_path) as running:
        yield running


def new_id() -> str:
    return f"m-{uuid.uuid4().hex[:12]}"


def assert_problem(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """The answer is a problem document (RFC 9457) about *status* whose detail has *words*."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert isinstance(document["title"], str)
    assert document["title"]
    assert isinstance(document["detail"], str)
    assert document["detail"]
    for word in words:
        assert word in document["detail"]
    return document


def states(found: dict[str, Any]) -> dict[str, str]:
    return {recipient: each["state"] for recipient, each in found["recipients"].items()}


# -- one request, one row


def test_an_accepted_command_is_answered_with_where_to_follow_it(api: Api) -> None:
    """202 names the revision, the event and a link that leads to the event."""
    material = new_id()
    first, second = api.publish(material), api.publish(material)

    assert (first.status_code, second.status_code) == (202, 202)
    assert (first.json()["revision"], second.json()["revision"]) == (1, 2)
    assert first.json()["material_id"] == material
    assert first.json()["event_id"] != second.json()["event_id"]
    link = first.headers["location"]
    assert link == first.json()["status_url"]
    assert api.client.get(link).json()["event_id"] == first.json()["event_id"]
    assert "idempotency-replayed" not in first.headers


def test_ten_twins_at_once_are_one_publication(api: Api) -> None:
    """Case 12: the same key and body ten times at once: one row, ten equal answers."""
    before, material, key = api.rows(), new_id(), uuid.uuid4().hex
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: api.publish(material, key=key), range(10)))

    assert [answer.status_code for answer in answers] == [202] * 10
    assert len({answer.content for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert api.rows() == before + 1


def test_ten_others_at_once_are_ten_revisions(api: Api) -> None:
    """Different requests for one material are all served, and share no number."""
    material = new_id()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: api.publish(material), range(10)))

    assert sorted(answer.json()["revision"] for answer in answers) == list(range(1, 11))


def test_the_order_of_fields_and_the_spaces_make_no_other_request(api: Api) -> None:
    """The key belongs to the command, not to its spelling."""
    material, key = new_id(), uuid.uuid4().hex
    first = api.publish(material, key=key)
    spelled = json.dumps(dict(reversed(BODY.items())), indent=3, ensure_ascii=False).encode()
    again = api.publish(material, spelled, key=key)

    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content


def test_a_key_that_was_used_for_something_else_is_refused(api: Api) -> None:
    """Case 12: same key, other body or other material: 422, and no row."""
    material, key = new_id(), uuid.uuid4().hex
    api.publish(material, key=key)
    before = api.rows()

    assert_problem(api.publish(material, {**BODY, "title": "Other"}, key=key), 422, key)
    assert_problem(api.publish(new_id(), key=key), 422, key)
    assert api.rows() == before


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
def test_a_body_of_17_mib_is_refused_without_a_row(api: Api, chunked: bool) -> None:
    """Case 12: 413, whether the size is announced or not."""
    before = api.rows()
    large = json.dumps({**BODY, "summary": "x" * (17 * MIB)}).encode()
    pieces = (large[at : at + MIB] for at in range(0, len(large), MIB))
    answer = api.client.post(
        f"/materials/{new_id()}/publish",
        content=pieces if chunked else large,
        headers={"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex},
    )

    assert_problem(answer, 413, str(MIB))
    assert api.rows() == before
    assert api.publish().status_code == 202


def test_a_body_up_to_the_limit_is_read(api: Api) -> None:
    """1 MiB is judged by its content (422: the summary is too long); one byte more is 413."""
    frame = len(json.dumps({**BODY, "summary": ""}).encode())
    whole = json.dumps({**BODY, "summary": "x" * (MIB - frame)}).encode()
    assert len(whole) == MIB

    assert_problem(api.publish(body=whole), 422, "summary")
    assert_problem(api.publish(body=whole + b" "), 413)


# -- what is refused


@pytest.mark.parametrize("key", ["", "with space", "x" * 129, "naïve".encode().decode("latin-1")])
def test_a_missing_or_unusable_key_is_a_400(api: Api, key: str) -> None:
    """The key becomes an AMQP short string: 1 to 128 visible ASCII characters."""
    before = api.rows()
    answer = api.client.post(
        f"/materials/{new_id()}/publish",
        json=BODY,
        headers={"Idempotency-Key": key.encode("latin-1")},
    )
    assert_problem(answer, 400, "Idempotency-Key")
    assert api.rows() == before


def test_no_key_at_all_is_a_400(api: Api) -> None:
    """Without a key a repetition could not be told from a second publication."""
    answer = api.client.post(f"/materials/{new_id()}/publish", json=BODY)
    document = assert_problem(answer, 400, "Idempotency-Key")
    assert document["errors"] == [{"where": "header.Idempotency-Key", "what": "Field required"}]


def test_a_command_for_another_revision_is_a_conflict(api: Api) -> None:
    """expected_revision 0 means new; a mismatch is 409 and leaves the key free."""
    material, key = new_id(), uuid.uuid4().hex
    assert api.publish(material, {**BODY, "expected_revision": 0}).status_code == 202
    before = api.rows()

    document = assert_problem(
        api.publish(material, {**BODY, "expected_revision": 0}, key=key), 409, material
    )
    assert "revision 1" in document["detail"]
    assert api.rows() == before
    assert api.publish(material, {**BODY, "expected_revision": 1}, key=key).status_code == 202


INVALID = {
    "no JSON": b"{nope",
    "nothing": b"",
    "a list": b"[]",
    "a bare string": b'"title"',
    "not UTF-8": b'{"title": "\xff\xfe"}',
    "NaN": json.dumps({**BODY, "expected_revision": float("nan")}).encode(),
    "Infinity": json.dumps({**BODY, "title": float("inf")}).encode(),
    "half a surrogate pair": json.dumps({**BODY, "title": "\ud83d"}).encode(),
    "half a pair as a name": json.dumps({**BODY, "\ud83d": 1}).encode(),
    "a number as title": json.dumps({**BODY, "title": 5}).encode(),
    "a text as revision": json.dumps({**BODY, "expected_revision": "1"}).encode(),
    "true as revision": json.dumps({**BODY, "expected_revision": True}).encode(),
    "1.0 as revision": json.dumps({**BODY, "expected_revision": 1.0}).encode(),
    "a huge revision": json.dumps({**BODY, "expected_revision": 10**400}).encode(),
    "a revision of 5000 digits": b'{"expected_revision": ' + b"9" * 5000 + b"}",
    "null as author": json.dumps({**BODY, "author": None}).encode(),
    "an empty title": json.dumps({**BODY, "title": ""}).encode(),
    "NUL in a title": json.dumps({**BODY, "title": "a\0b"}).encode(),
    "a slug with spaces": json.dumps({**BODY, "slug": "a b"}).encode(),
    "an unknown field": json.dumps({**BODY, "searchable": True}).encode(),
    "a missing field": json.dumps({"title": "T"}).encode(),
    "deep nesting": b"[" * 100_000,
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_body_is_refused_without_a_row(api: Api, body: bytes) -> None:
    """422 (400 for bytes that no JSON reader can take), as a problem document, and no row."""
    before = api.rows()
    answer = api.publish(body=body)
    assert_problem(answer, 400 if answer.status_code == 400 else 422)
    assert (answer.status_code == 422) or body in (
        INVALID["not UTF-8"],
        INVALID["deep nesting"],
        INVALID["a revision of 5000 digits"],
    )
    assert api.rows() == before


def test_an_unknown_field_is_named(api: Api) -> None:
    """A misspelled field is not dropped in silence."""
    document = assert_problem(api.publish(body={**BODY, "sumary": "x"}), 422, "sumary")
    assert [each["where"] for each in document["errors"]] == ["body.sumary"]


@pytest.mark.parametrize("material", ["-x", ".x", "a b", "é", "x" * 65, "a%00b", "a%0Ab", "%FF"])
def test_a_material_id_that_the_contract_refuses_is_a_422(api: Api, material: str) -> None:
    """It would be in every event for ever; so it is refused here."""
    before = api.rows()
    assert_problem(api.publish(material), 422, "material_id")
    assert api.rows() == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing-here", 404),
        ("GET", "/publications/unknown", 404),
        ("GET", "/publications/%FF%00", 404),
        ("GET", "/publications/" + "x" * 4000, 404),
        ("GET", "/materials/m-1/publish", 405),
        ("DELETE", "/publications/unknown", 405),
        ("PUT", "/status", 405),
        ("GET", "/docs", 404),
        ("GET", "/redoc", 404),
    ],
)
def test_every_other_error_is_a_problem_too(api: Api, method: str, path: str, status: int) -> None:
    """Nothing here, wrong method, unknown event: one form for all, also for the framework's own."""
    assert_problem(api.client.request(method, path), status)


# -- who may come in


def test_an_address_that_others_can_reach_is_refused() -> None:
    """Case 19: no login, so no bind to anything but loopback; one sentence, exit code 1."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org"):
        ended = delivery("api", "--host", host, "--port", "0")
        assert ended.returncode == 1
        assert ended.stderr.startswith("error: ")
        assert "loopback" in ended.stderr
        assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "host",
    ["example.org", "127.0.0.1.example.org", "192.0.2.1", "localhost.evil", "", "[::1", "a@b:c"],
)
def test_a_foreign_host_is_turned_away(api: Api, host: str) -> None:
    """Case 19: a page of another site whose name was made to resolve to loopback sees nothing."""
    assert_problem(api.client.get("/status", headers={"Host": host}), 403, "Host")
    assert_problem(api.publish(Host=host), 403, "Host")


def test_loopback_by_any_name_is_let_in(api: Api) -> None:
    """127.0.0.1, localhost, ::1, with a port or without."""
    port = api.url.rpartition(":")[2]
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", "127.8.8.8:1", "[::1]", "[::1]:80"):
        assert api.client.get("/status", headers={"Host": host}).status_code == 200, host


@pytest.mark.parametrize(
    "origin", ["https://example.org", "null", "http://127.0.0.1:1", "http://["]
)
def test_a_post_from_a_page_of_another_site_is_turned_away(api: Api, origin: str) -> None:
    """Case 19: a form or a script elsewhere cannot publish in the reader's name."""
    before = api.rows()
    assert_problem(api.publish(Origin=origin), 403, "may not post")
    assert api.rows() == before


def test_a_post_from_a_page_of_our_own_is_let_in(api: Api) -> None:
    """The live page is served from the same origin."""
    assert api.publish(Origin=api.url).status_code == 202


def test_curl_works_as_the_readme_shows_it(api: Api, tmp_path: Path) -> None:
    """Case 19: the README's curl commands, with only the port changed."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("http://127.0.0.1:8080", api.url)
    command, follow = re.findall(r"^    (curl (?:.*\\\n)*.*)$", readme, re.M)
    for replayed in (False, True):
        shown = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        assert shown.startswith("HTTP/1.1 202")
        assert ("idempotency-replayed: true" in shown.lower()) is replayed
        assert json.loads(shown.splitlines()[-1])["revision"] == 1
    followed = subprocess.run(["bash", "-c", follow], capture_output=True, text=True, check=True)
    assert json.loads(followed.stdout)["matched_by"] == "material_id"


# -- what is seen


def test_a_publication_is_followed_from_row_to_receipts(own_api: Api) -> None:
    """Row, outcome, each recipient's receipt; what can't be seen is said to be "not visible"."""
    event_id = own_api.publish("m-1").json()["event_id"]
    link = f"/publications/{event_id}"

    found = own_api.client.get(link).json()
    assert (found["attempts"], found["outcome"], found["confirmed_at"]) == (0, None, None)
    assert states(found) == {"catalog": "not visible", "audit": "not visible"}

    inbox = own_api.stores.open("catalog")
    found = own_api.client.get(link).json()
    assert states(found) == {"catalog": "not seen", "audit": "not visible"}

    handle = once(Route("catalog"), lambda _event, _tx: Effect.STALE)
    for _ in range(3):
        handle(event(event_id=event_id), inbox)
    receipt = own_api.client.get(link).json()["recipients"]["catalog"]
    assert (receipt["state"], receipt["effect"], receipt["duplicates"]) == ("settled", "stale", 2)
    inbox.close()

    with closing(own_api.stores.open(PUBLISHER)) as store:
        store.execute(
            "UPDATE outbox SET attempts = 2, outcome = 'returned', detail = '312 NO_ROUTE'"
        )
    found = own_api.client.get(link).json()
    assert (found["attempts"], found["outcome"]) == (2, "returned")
    assert found["detail"] == "312 NO_ROUTE"


def test_a_recipients_broken_file_hides_only_its_own_receipt(own_api: Api) -> None:
    """The publisher's row and the other recipient are still shown."""
    event_id = own_api.publish("m-1").json()["event_id"]
    own_api.stores.open("audit").close()
    own_api.stores.path("catalog").write_text("this is no database, and long enough to see that")

    found = own_api.client.get(f"/publications/{event_id}")

    assert found.status_code == 200, found.text
    assert states(found.json()) == {"catalog": "not visible", "audit": "not seen"}


def test_a_publication_is_found_by_its_request_and_its_material(own_api: Api) -> None:
    """The answer says what matched; of a material it follows the latest event, and lists all."""
    first = own_api.publish("m-1", key="a/key").json()["event_id"]
    second = own_api.publish("m-1").json()["event_id"]

    by_request = own_api.client.get("/publications/a/key").json()
    assert (by_request["event_id"], by_request["matched_by"]) == (first, "request_id")
    assert (by_request["material_id"], by_request["revision"]) == ("m-1", 1)
    with closing(own_api.stores.open("catalog")) as inbox:
        once(Route("catalog"), lambda _event, _tx: Effect.APPLIED)(event(event_id=second), inbox)
    by_material = own_api.client.get("/publications/m-1").json()
    assert states(by_material) == {"catalog": "settled", "audit": "not visible"}
    assert (by_material["event_id"], by_material["matched_by"]) == (second, "material_id")
    assert by_material["events"] == [first, second]
    by_event = own_api.client.get(f"/publications/{first}").json()
    assert (by_event["matched_by"], by_event["events"]) == ("event_id", [first])
    assert_problem(own_api.client.get("/publications/nobody"), 404, "nobody")


def test_ready_means_that_a_command_could_be_committed(own_api: Api) -> None:
    """While another writer holds the store: 503 with the reason, alive all the same; then well."""
    assert own_api.client.get("/readyz").json() == {"status": "ready"}
    other = sqlite3.connect(own_api.stores.path(PUBLISHER), isolation_level=None)
    with closing(other):
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with ThreadPoolExecutor(6) as pool:  # all wait out the busy timeout, at the same time
            ready = pool.submit(own_api.client.get, "/readyz")
            queued = [pool.submit(own_api.publish) for _ in range(5)]
            publish = queued[0]
            assert own_api.client.get("/healthz").status_code == 200
            assert_problem(ready.result(), 503, "locked")
            assert_problem(publish.result(), 503, "locked")
            assert publish.result().headers["retry-after"] == "1"
            for each in queued:
                assert_problem(each.result(), 503, "locked")
        assert time.monotonic() - begun < 2.5 * BUSY_TIMEOUT  # and not one after the other
        other.execute("ROLLBACK")

    assert own_api.client.get("/readyz").status_code == 200
    assert own_api.publish().status_code == 202
    assert own_api.rows() == 1


def test_a_disk_that_takes_nothing_is_not_ready(own_api: Api) -> None:
    """The process may write no file any more: what a full disk looks like to it; then it is well.

    To begin a transaction would still work: only a real write tells.
    """
    own_api.publish()
    pid = own_api.actor.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        assert_problem(own_api.client.get("/readyz"), 503, "the store can't be used")
        assert own_api.client.get("/healthz").status_code == 200
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert own_api.client.get("/readyz").json() == {"status": "ready"}


def test_a_request_that_waits_a_moment_for_the_store_is_served(own_api: Api) -> None:
    """Another writer's short transaction delays a command and does not refuse it."""
    own_api.publish()
    other = sqlite3.connect(own_api.stores.path(PUBLISHER), isolation_level=None)
    with closing(other), ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(own_api.publish)
        assert own_api.client.get("/healthz").status_code == 200
        other.execute("COMMIT")
        assert waiting.result().status_code == 202


def test_status_counts_by_the_last_outcome(own_api: Api) -> None:
    """Accepted = confirmed + pending, and pending says how the last attempt went."""
    for _ in range(3):
        own_api.publish()
    with closing(own_api.stores.open(PUBLISHER)) as store:
        store.execute(
            "UPDATE outbox SET confirmed_at = 1, outcome = 'confirmed' WHERE position = 1"
        )
        store.execute("UPDATE outbox SET outcome = 'unknown' WHERE position = 2")

    status = own_api.client.get("/status").json()

    assert (status["accepted"], status["confirmed"]) == (3, 1)
    assert status["pending"] == {"not tried": 1, "unknown": 1}
    assert 0 <= status["oldest_pending_seconds"] < 60


def test_the_metrics_can_be_read_and_obey_the_rules(own_api: Api) -> None:
    """They parse; all begin with delivery_ and have a help text; counters end in _total."""
    own_api.publish()
    answer = own_api.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))

    assert {family.name: family.type for family in families} == {
        "delivery_publications_accepted": "counter",
        "delivery_publications_confirmed": "counter",
        "delivery_outbox_pending": "gauge",
        "delivery_outbox_oldest_pending_age_seconds": "gauge",
    }
    for family in families:
        assert re.fullmatch(r"delivery_[a-z][a-z_]*[a-z]", family.name)
        assert family.documentation
        for sample in family.samples:
            assert sample.name.endswith("_total") is (family.type == "counter")
            assert set(sample.labels) <= {"last_outcome"}  # no ids: a label value costs memory
    values = {s.name: s.value for family in families for s in family.samples}
    assert values["delivery_publications_accepted_total"] == 1
    assert values["delivery_publications_confirmed_total"] == 0
    assert values["delivery_outbox_pending"] == 1


def test_the_counters_survive_a_restart(tmp_path: Path) -> None:
    """They are read from the store: a restart is no reset."""
    for expected in (1.0, 2.0):
        with serving(tmp_path) as running:
            running.publish()
            text = running.client.get("/metrics").text
            assert f"delivery_publications_accepted_total {expected}" in text


def test_the_api_is_described_and_loads_nothing_from_outside(api: Api) -> None:
    """openapi.json is served; pages that fetch scripts from other sites are not."""
    described = api.client.get("/openapi.json").json()
    assert "/materials/{material_id}/publish" in described["paths"]
    assert not re.search(r"https?://(?!127\.0\.0\.1)", api.client.get("/openapi.json").text)
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert api.client.get(path).status_code == 404


def test_the_api_ends_in_order_when_it_is_asked_to(own_api: Api) -> None:
    """SIGTERM: exit code 0, and the log's last word says so."""
    own_api.publish()
    assert own_api.actor.stop() == 0
    assert own_api.actor.log().rstrip().endswith("api.stopped")


def test_a_taken_port_is_said_in_one_sentence(tmp_path: Path) -> None:
    """Exit code 1, which port, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = delivery("--data", str(tmp_path), "api", "--port", port)
    assert ended.returncode == 1
    assert port in ended.stderr
    assert "--port" in ended.stderr
    assert "Traceback" not in ended.stderr


# -- no input makes it fail

HEADER_BYTES = st.binary(max_size=30).map(
    lambda raw: bytes(b for b in raw if b == 9 or 32 <= b != 127).strip()
)
ODD_FIELDS = st.dictionaries(
    st.sampled_from([*BODY, "summary", "expected_revision", "extra", "\ud83d"]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from(["\ud83d", "a-b", "x" * 301, "\0"]),
        st.lists(st.integers(), max_size=2),
    ),
)
BODIES = st.one_of(
    st.binary(max_size=60),
    ODD_FIELDS.map(lambda fields: json.dumps(fields).encode()),
    ODD_FIELDS.map(lambda fields: json.dumps({**BODY, **fields}).encode()),
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Idempotency-Key": st.one_of(st.just(b"k-1"), HEADER_BYTES),
        "Content-Type": st.one_of(st.just(b"application/json"), HEADER_BYTES),
        "Origin": st.one_of(st.sampled_from([b"http://[", b"//]"]), HEADER_BYTES),
        "Host": st.one_of(
            st.sampled_from([b"127.0.0.1", b"[", b"[::1", b"localhost:x"]), HEADER_BYTES
        ),
    },
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(["POST", "POST", "POST", "GET", "PUT"]),
    path=st.one_of(
        st.just("/materials/m-1/publish"),
        st.binary(max_size=12).map(lambda raw: f"/materials/{quote(raw, safe='')}/publish"),
        st.binary(max_size=12).map(lambda raw: f"/publications/{quote(raw, safe='')}"),
    ),
    body=BODIES,
    headers=HEADERS,
)
def test_no_input_is_the_servers_fault(
    api: Api, method: str, path: str, body: bytes, headers: dict[str, bytes]
) -> None:
    """Whatever comes: never a 5xx, and every error is a problem document."""
    answer = api.client.request(method, path, content=body, headers=headers)

    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        assert answer.json()["status"] == answer.status_code


# -- clients that do not finish, and files that go away


def half_request(api: Api, *, chunked: bool) -> socket.socket:
    """Send a command whose last bytes never come."""
    body = json.dumps(BODY).encode()
    size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body) + 50}"
    head = (
        f"POST /materials/{new_id()}/publish HTTP/1.1\r\nHost: 127.0.0.1\r\n{size}\r\n"
        "Content-Type: application/json\r\nIdempotency-Key: half\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", api.client.base_url.port or 80))
    client.sendall(head.encode() + (b"%x\r\n%s\r\n" % (len(body), body) if chunked else body))
    return client


@pytest.mark.parametrize("chunked", [False, True], ids=["Content-Length", "chunked"])
def test_half_a_request_is_not_carried_out(own_api: Api, chunked: bool) -> None:
    """RFC 9112, section 8: an incomplete request is not processed."""
    half_request(own_api, chunked=chunked).close()
    assert own_api.publish().status_code == 202  # the server has gone on
    assert own_api.rows() == 1


def test_a_client_that_never_finishes_does_not_keep_the_server_from_stopping(own_api: Api) -> None:
    """SIGTERM ends it within seconds, in order."""
    with closing(half_request(own_api, chunked=False)):
        assert own_api.client.get("/healthz").status_code == 200
        assert own_api.actor.stop() == 0
    assert own_api.actor.said("api.stopped") == 1


def test_a_store_that_was_deleted_accepts_nothing(own_api: Api) -> None:
    """SQLite would go on writing into the deleted file: a 202 for a fact that is lost."""
    assert own_api.publish().status_code == 202
    for file in own_api.stores.data.glob("publisher.sqlite3*"):
        file.unlink()
    assert_problem(own_api.publish(), 503, "removed or replaced")
    assert_problem(own_api.client.get("/readyz"), 503, "removed or replaced")
