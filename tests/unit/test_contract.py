"""The contract holds to the byte: what is valid, what is refused, and with which reason.

The golden files under ``data/contract`` are bytes, not text: another implementation, in any
language, can be tested against the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from delivery.codec import ContractError, decode, encode
from delivery.contract import Event, MaterialPublished, json_schema, material_published

CONTRACT = Path(__file__).parents[2] / "data" / "contract"
SCHEMA_FILE = CONTRACT / "material.published.v1.schema.json"

# The bytes that encode() itself would write.
CANONICAL = {
    "chinese_and_japanese",
    "combining_accents",
    "earliest_time",
    "emoji",
    "escapes_in_title",
    "largest_revision",
    "latest_time",
    "minimal",
    "names_at_limit",
    "right_to_left",
    "russian",
    "text_at_limit",
    "time_and_published_at_differ",
}
# Valid bytes that another publisher could write; encode() writes the same event differently.
OTHER_FORMS = {
    "escaped_unicode",
    "nanosecond_timestamp",
    "offset_timestamp",
    "other_order_and_spacing",
    "unknown_extra_fields",
}

REFUSED = {
    # not JSON at all; RFC 8259 allows a reader to limit depth and the size of numbers (section 9)
    "byte_order_mark": "not_json",
    "comment": "not_json",
    "deep_nesting": "not_json",
    "empty": "empty",
    "encoded_surrogate": "not_utf8",
    "huge_integer": "not_json",
    "infinity": "not_json",
    "leading_zero": "not_json",
    "nan": "not_json",
    "not_json": "not_json",
    "not_utf8": "not_utf8",
    "overlong_utf8": "not_utf8",
    "raw_newline_in_text": "not_json",
    "single_quotes": "not_json",
    "trailing_comma": "not_json",
    "truncated": "not_json",
    "two_documents": "not_json",
    "utf16": "not_json",
    "whitespace_only": "not_json",
    "xml": "not_json",
    # JSON, but no object whose names mean one thing
    "duplicate_field": "duplicate_field",
    "duplicate_field_escaped": "duplicate_field",
    "duplicate_field_in_data": "duplicate_field",
    "duplicate_field_in_extra": "duplicate_field",
    "json_array": "not_object",
    "json_null": "not_object",
    "json_number": "not_object",
    "json_text": "not_object",
    # something is missing
    "empty_object": "missing_field",
    "missing_author": "missing_field",
    "missing_data": "missing_field",
    "missing_datacontenttype": "missing_field",
    "missing_dataschema": "missing_field",
    "missing_id": "missing_field",
    "missing_material_id": "missing_field",
    "missing_published_at": "missing_field",
    "missing_revision": "missing_field",
    "missing_slug": "missing_field",
    "missing_source": "missing_field",
    "missing_specversion": "missing_field",
    "missing_subject": "missing_field",
    "missing_time": "missing_field",
    "missing_title": "missing_field",
    "missing_type": "missing_field",
    "without_envelope": "missing_field",
    # another event, or another version of this one
    "type_in_capitals": "unknown_type",
    "type_without_version": "unknown_type",
    "unknown_type": "unknown_type",
    "unknown_version": "unknown_version",
    # the envelope
    "data_as_list": "wrong_type",
    "data_as_text": "wrong_type",
    "data_null": "wrong_type",
    "datacontenttype_xml": "wrong_value",
    "dataschema_of_v2": "wrong_value",
    "id_as_number": "wrong_type",
    "id_empty": "wrong_value",
    "id_not_ascii": "wrong_value",
    "id_too_long": "wrong_value",
    "id_with_newline": "wrong_value",
    "id_with_space": "wrong_value",
    "source_empty": "wrong_value",
    "source_too_long": "wrong_value",
    "specversion_0_3": "wrong_value",
    "specversion_as_number": "wrong_value",
    "subject_differs": "wrong_value",
    "subject_null": "wrong_type",
    "subject_with_slash": "wrong_value",
    "time_as_number": "wrong_value",
    "time_date_only": "wrong_value",
    "time_in_words": "wrong_value",
    "time_no_such_day": "wrong_value",
    "time_null": "wrong_value",
    "time_offset_too_large": "wrong_value",
    "time_out_of_range": "wrong_value",
    "time_with_space": "wrong_value",
    "time_without_offset": "wrong_value",
    "type_as_number": "wrong_value",
    # the data
    "author_as_object": "wrong_type",
    "author_empty": "wrong_value",
    "author_too_long": "wrong_value",
    "lone_surrogate_title": "wrong_value",
    "material_id_empty": "wrong_value",
    "material_id_starts_with_dot": "wrong_value",
    "material_id_too_long": "wrong_value",
    "published_at_without_offset": "wrong_value",
    "revision_as_boolean": "wrong_type",
    "revision_as_float": "wrong_type",
    "revision_as_fraction": "wrong_type",
    "revision_as_text": "wrong_type",
    "revision_negative": "wrong_value",
    "revision_null": "wrong_type",
    "revision_too_large": "wrong_value",
    "revision_with_exponent": "wrong_type",
    "revision_zero": "wrong_value",
    "slug_empty": "wrong_value",
    "slug_in_capitals": "wrong_value",
    "slug_not_ascii": "wrong_value",
    "slug_too_long": "wrong_value",
    "slug_with_double_hyphen": "wrong_value",
    "slug_with_newline": "wrong_value",
    "swapped_surrogates_title": "wrong_value",
    "title_as_list": "wrong_type",
    "title_as_number": "wrong_type",
    "title_empty": "wrong_value",
    "title_null": "wrong_type",
    "title_too_long": "wrong_value",
}
REASONS = set(REFUSED.values())
NOT_JSON = {name for name, why in REFUSED.items() if why in {"empty", "not_json", "not_utf8"}}

_DUPLICATE = "a schema sees the object after a reader has chosen one of the equal names"
_FORMAT = "`format` is an annotation in draft 2020-12; it asserts nothing unless asked to"
_INTEGER = "JSON Schema calls 2.0 an integer; this contract wants it written as one"
_SURROGATE = "JSON text can escape half a character, and a schema counts it as one"
_NEWLINE = (
    "in Python's re, `$` also matches before a last newline; ECMA-262, which is meant, refuses"
)
SCHEMA_CANNOT = {
    "duplicate_field": _DUPLICATE,
    "duplicate_field_escaped": _DUPLICATE,
    "duplicate_field_in_data": _DUPLICATE,
    "duplicate_field_in_extra": _DUPLICATE,
    "id_with_newline": _NEWLINE,
    "lone_surrogate_title": _SURROGATE,
    "published_at_without_offset": _FORMAT,
    "revision_as_float": _INTEGER,
    "revision_with_exponent": _INTEGER,
    "slug_with_newline": _NEWLINE,
    "subject_differs": "a schema cannot compare two fields",
    "swapped_surrogates_title": _SURROGATE,
    "time_date_only": _FORMAT,
    "time_in_words": _FORMAT,
    "time_no_such_day": _FORMAT,
    "time_offset_too_large": _FORMAT,
    "time_out_of_range": _FORMAT,
    "time_with_space": _FORMAT,
    "time_without_offset": _FORMAT,
}


def valid(name: str) -> bytes:
    return (CONTRACT / "valid" / f"{name}.json").read_bytes()


def invalid(name: str) -> bytes:
    return (CONTRACT / "invalid" / f"{name}.json").read_bytes()


def names_in(folder: str) -> set[str]:
    return {path.name.removesuffix(".json") for path in (CONTRACT / folder).iterdir()}


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def russian_with(**changes: Any) -> bytes:
    """Return a valid event with top-level fields changed."""
    return json.dumps(json.loads(valid("russian")) | changes).encode()


# --- golden bytes -------------------------------------------------------------------------


def test_the_lists_name_exactly_the_golden_files() -> None:
    """No golden file is forgotten by the tests, and no test runs on a file that is gone."""
    assert names_in("valid") == CANONICAL | OTHER_FORMS
    assert names_in("invalid") == set(REFUSED)


@pytest.mark.parametrize("name", sorted(CANONICAL))
def test_canonical_bytes_stay_as_they_are(name: str) -> None:
    """An event is the same bytes before and after this package: hashes and signatures survive."""
    assert encode(decode(valid(name))) == valid(name)


@pytest.mark.parametrize("name", sorted(OTHER_FORMS))
def test_other_valid_forms_mean_the_same_event_afterwards(name: str) -> None:
    """Bytes from another publisher are understood, and encoding them again loses no meaning."""
    event = decode(valid(name))
    again = encode(event)
    assert again != valid(name)
    assert encode(decode(again)) == again
    assert decode(again).data.model_dump(exclude={"published_at"}) == event.data.model_dump(
        exclude={"published_at"}
    )
    assert abs(decode(again).time - event.time) < timedelta(milliseconds=1)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_every_violation_is_refused_with_its_reason(name: str) -> None:
    """A breach of the contract is told from a failure of the handler, by one word for machines."""
    with pytest.raises(ContractError) as refusal:
        decode(invalid(name))
    assert refusal.value.reason == REFUSED[name]
    assert str(refusal.value).startswith(f"{REFUSED[name]}: ")


def test_escaped_and_raw_text_are_one_event() -> None:
    """The way in which JSON writes a character does not change the event."""
    assert decode(valid("escaped_unicode")) == decode(valid("emoji"))


def test_text_is_not_normalised() -> None:
    """Combining accents arrive as they were sent: a title is the author's, to the code point."""
    event = decode(valid("combining_accents"))
    assert "e\u0301" in event.data.title
    assert "\u00e9" not in event.data.title


def test_an_offset_names_the_same_instant() -> None:
    """Times are compared as instants, whatever offset the publisher lives in."""
    event = decode(valid("offset_timestamp"))
    assert event.time == event.data.published_at == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert b'"time":"2026-01-31T12:00:00.000Z"' in encode(event)


def test_unknown_fields_are_tolerated_and_dropped() -> None:
    """A publisher may add fields without asking; they change nothing that this reader sees."""
    extra = json.loads(valid("unknown_extra_fields"))
    known = Event.model_fields.keys()
    plain = {name: value for name, value in extra.items() if name in known}
    plain["data"] = {
        name: value
        for name, value in extra["data"].items()
        if name in MaterialPublished.model_fields
    }
    assert plain != extra
    assert decode(valid("unknown_extra_fields")) == decode(json.dumps(plain).encode())


def test_the_largest_message_id_and_texts_fit() -> None:
    """The limits are inclusive and count code points, not bytes or UTF-16 units."""
    assert len(decode(valid("text_at_limit")).data.title) == 300
    assert len(decode(valid("names_at_limit")).id) == 128
    assert len(decode(valid("names_at_limit")).subject) == 64
    assert decode(valid("largest_revision")).data.revision == 2**53 - 1


# --- the schema ---------------------------------------------------------------------------


def test_the_schema_file_is_the_schema_of_the_code() -> None:
    """Whoever generates a client from the file gets the contract that runs here."""
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    assert SCHEMA_FILE.read_bytes() == text.encode()


@pytest.mark.parametrize("name", sorted(CANONICAL | OTHER_FORMS))
def test_the_schema_accepts_what_the_code_accepts(name: str) -> None:
    """A recipient that only has the schema refuses no valid event."""
    validator().validate(json.loads(valid(name)))


@pytest.mark.parametrize("name", sorted(set(REFUSED) - NOT_JSON - set(SCHEMA_CANNOT)))
def test_the_schema_refuses_what_it_can_express(name: str) -> None:
    """A recipient that only has the schema catches every breach that a schema can describe."""
    assert not validator().is_valid(json.loads(invalid(name)))


@pytest.mark.parametrize("name", sorted(SCHEMA_CANNOT))
def test_the_schema_is_not_enough(name: str) -> None:
    """The list of what only the code refuses is true: these pass the schema, and not decode()."""
    assert name in REFUSED
    assert validator().is_valid(json.loads(invalid(name))), SCHEMA_CANNOT[name]


def _readable(text: str) -> bool:
    """Something to read, and no NUL."""
    return bool(text.strip()) and "\0" not in text


# --- properties ---------------------------------------------------------------------------

deterministic = settings(derandomize=True, deadline=None, max_examples=250, database=None)

_unicode = st.characters(exclude_categories=["Cs"])
_offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(  # a day short of what datetime holds: an offset may move it that far
    min_value=datetime.fromisoformat("0001-01-02"),
    max_value=datetime.fromisoformat("9999-12-30"),
    timezones=_offsets,
)
materials = st.builds(
    MaterialPublished,
    material_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,63}", fullmatch=True),
    revision=st.integers(1, 2**53 - 1),
    title=st.text(_unicode, max_size=300).filter(_readable),
    slug=st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,9}", fullmatch=True),
    author=st.text(_unicode, max_size=200).filter(_readable),
    published_at=instants,
)


@st.composite
def events(draw: Callable[..., Any]) -> Event:
    """Any event that the models let a publisher build."""
    data = draw(materials)
    event_id = draw(st.from_regex(r"[\x21-\x7e]{1,128}", fullmatch=True))
    event = material_published(event_id, data)
    if draw(st.booleans()):
        return event
    fields = dict(event) | {"source": draw(st.text(_unicode, min_size=1, max_size=255))}
    return Event(**fields | {"time": draw(instants)})


@deterministic
@given(events())
def test_any_event_survives_the_wire_to_the_byte(event: Event) -> None:
    """What a publisher could build, a recipient reads, and would send on as the same bytes."""
    body = encode(event)
    back = decode(body)
    assert encode(back) == body
    assert (back.id, back.source, back.subject) == (event.id, event.source, event.subject)
    untimed = {"published_at"}
    assert back.data.model_dump(exclude=untimed) == event.data.model_dump(exclude=untimed)
    assert timedelta() <= event.time - back.time < timedelta(milliseconds=1)


@deterministic
@given(events())
def test_any_event_satisfies_the_published_schema(event: Event) -> None:
    """A recipient that checks the schema never parks what this publisher sent."""
    validator().validate(json.loads(encode(event)))


def is_read_or_refused(body: bytes) -> None:
    """Assert that decode() gives an event that is stable, or ContractError, and nothing else."""
    try:
        event = decode(body)
    except ContractError as refusal:
        assert refusal.reason in REASONS
        str(refusal).encode()  # the detail goes into a header and a log: it must be sound text
        return
    again = encode(event)
    assert encode(decode(again)) == again


VALID = valid("russian")
DEEP = 200_000


@deterministic
@given(st.binary(max_size=200))
@example(b"[" * DEEP)
@example(b'{"a":' * DEEP)
@example(b"[" * DEEP + b"]" * DEEP)
@example(b'{"type":' * DEEP + b"1" + b"}" * DEEP)
@example(b"1" + b"0" * 5000)
@example(b"-1" + b"0" * 5000)
@example(b"1e999999999999")
@example(b'"' + b"\\ud800" * 9 + b'"')
@example(b"\x00")
@example(b"\xff\xfe\x00\x00")
def test_arbitrary_bytes_are_refused_and_nothing_worse(body: bytes) -> None:
    """Whatever lands in the queue, the consumer gets a ContractError that it can park."""
    is_read_or_refused(body)


@deterministic
@given(st.integers(0, len(VALID)), st.integers(0, 12), st.binary(max_size=12))
def test_a_damaged_event_is_read_or_refused(at: int, cut: int, patch: bytes) -> None:
    """A valid event with a few bytes cut, changed or added makes no other error."""
    is_read_or_refused(VALID[:at] + patch + VALID[at + cut :])


# json.dumps escapes surrogates and writes NaN and Infinity; decode() must survive both.
_any_text = st.text(max_size=12) | st.sampled_from(["\ud800", "\udc00\ud800", "\x00", "Z", "T"])
_any_number = st.integers() | st.floats() | st.sampled_from([2**53, 10**400, 10**4000, -(2**63)])
_scalars = st.none() | st.booleans() | _any_number | _any_text
any_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_any_text, inner, max_size=4),
    max_leaves=12,
)
EVENT_FIELDS = sorted(Event.model_fields)
DATA_FIELDS = sorted(MaterialPublished.model_fields)


@deterministic
@given(any_json)
@example({"type": "material.published.v1", "data": {}})
@example({"type": "material.published.v\u00b2"})
@example({"type": "material.published.v" + "9" * 5000})
@example({"\ud800": {"\udfff": 1}})
def test_arbitrary_json_is_refused_and_nothing_worse(value: Any) -> None:
    """JSON that somebody else meant for somebody else is parked, and stops no consumer."""
    is_read_or_refused(json.dumps(value).encode())


@deterministic
@given(
    st.sampled_from([*EVENT_FIELDS, "extra"]) | st.sampled_from(DATA_FIELDS).map(lambda f: (f,)),
    any_json,
)
@example("time", "0001-01-01T00:00:00+23:59")
@example("time", "9999-12-31T23:59:59.999999-23:59")
@example("time", "0000-00-00T00:00:00Z")
@example("time", "T" * 1000)
@example(("published_at",), "2026-01-31T12:00:00+99:99")
@example(("revision",), 10**4000)
@example(("title",), "\ud83e")
@example("type", "\ud800")
def test_any_value_in_any_field_is_read_or_refused(field: str | tuple[str], value: Any) -> None:
    """One wrong field in an event that is right otherwise makes no other error."""
    fields = json.loads(VALID)
    if isinstance(field, tuple):
        fields["data"][field[0]] = value
    else:
        fields[field] = value
    is_read_or_refused(json.dumps(fields).encode())


@pytest.mark.parametrize("depth", [10, 100, 500, 900, 990, 1_000, 1_010, 5_000, 50_000])
@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_of_any_depth_is_read_or_refused(left: bytes, right: bytes, depth: int) -> None:
    """Depth exhausts no stack, neither in an unknown field nor in one that is checked."""
    nested = left * depth + b"1" + right * depth
    is_read_or_refused(VALID[:-1] + b',"extra":' + nested + b"}")
    is_read_or_refused(VALID.replace(b'"title":', b'"title":' + nested + b',"was":'))


@deterministic
@given(st.sampled_from([*EVENT_FIELDS, *DATA_FIELDS]), any_json)
def test_a_name_that_occurs_twice_is_always_refused(field: str, value: Any) -> None:
    """Two readers can never see two events in one message, even where both values are fine."""
    text, name = VALID.decode(), json.dumps(field)
    at = text.index(f"{name}:")
    body = f"{text[:at]}{name}:{json.dumps(value)},{text[at:]}".encode()
    with pytest.raises(ContractError) as refusal:
        decode(body)
    assert refusal.value.reason in {"duplicate_field", "not_json"}  # not_json: NaN came first


# --- what building an event promises ------------------------------------------------------


@deterministic
@given(st.text(max_size=3), st.text(max_size=3))
@example("\ud800", "slug")
def test_a_lone_surrogate_is_refused_where_the_event_is_built(title: str, author: str) -> None:
    """What could not be encoded cannot be built: encode() has no error of its own."""
    fields = {"material_id": "m", "revision": 1, "title": title, "slug": "s", "author": author}
    try:
        data = MaterialPublished(**fields, published_at=datetime(2026, 1, 31, tzinfo=UTC))
    except ValidationError:
        surrogate = any("\ud800" <= c <= "\udfff" for c in title + author)
        assert surrogate or not (_readable(title) and _readable(author))
        return
    assert decode(encode(material_published("e", data))).data.title == title


def test_a_naive_datetime_is_refused_where_the_event_is_built() -> None:
    """An event's time is an instant; the local time of some machine never slips in."""
    with pytest.raises(ValidationError, match="RFC 3339"):
        MaterialPublished(
            material_id="m",
            revision=1,
            title="t",
            slug="s",
            author="a",
            published_at=datetime.fromisoformat("2026-01-31T12:00:00"),
        )


# --- what nobody can slip past the contract -----------------------------------------------


@pytest.mark.parametrize(
    "moment",
    [
        "2026-W05-6T12:00:00Z",
        "20260131T120000Z",
        "2026-01-31T12:00Z",
        "2026-01-31T12Z",
        "2026-01-31T12:00:00,5Z",
        "2026-01-31T12:00:00+0300",
        "2026-01-31T12:00:00+03",
        "2026-01-31T12:00:00+00:00:30",
        "2026-01-31T12:00:00 Z",
    ],
)
def test_a_timestamp_outside_rfc_3339_is_refused(moment: str) -> None:
    """A timestamp that another JSON Schema validator refuses is refused here too."""
    with pytest.raises(ContractError):
        decode(russian_with(time=moment))


def test_a_refusal_is_short_however_long_the_value() -> None:
    """The detail of a refusal fits a header and a log line; a sender cannot choose its size."""
    with pytest.raises(ContractError) as refusal:
        decode(russian_with(time="T" * 100_000))
    assert len(str(refusal.value)) < 1_000


def test_an_event_whose_subject_differs_cannot_be_built() -> None:
    """Nothing can be encoded that every recipient would have to park."""
    event = decode(VALID)
    with pytest.raises(ValidationError):
        Event(**dict(event) | {"subject": "another-material"})
