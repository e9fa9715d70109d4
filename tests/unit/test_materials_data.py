"""The course publishes itself: its own history is the data of the live demo."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from delivery.codec import decode, encode
from delivery.contract import MaterialPublished, PublishMaterial, material_published

DATA = Path(__file__).parents[2] / "data" / "materials.jsonl"
FIELDS = ["material_id", "title", "slug", "author", "summary"]
LESSONS = [f"lesson-{number:02d}" for number in range(19)]

# Written as base letter + combining accent on purpose (NFD): nothing on the way may "repair" them.
# Every other text in the file is NFC.
DECOMPOSED = {
    ("author", unicodedata.normalize("NFD", "Ngô Thị Bích")),
    ("author", "Zoe\u0308 Lindqvist"),
    ("title", unicodedata.normalize("NFD", "Thử lại có giới hạn: một khoảng nghỉ, một địa chỉ")),
}


def publications() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def by_material() -> dict[str, list[dict[str, Any]]]:
    materials: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for publication in publications():
        materials[publication["material_id"]].append(publication)
    return materials


def test_every_line_is_one_command_in_plain_utf8() -> None:
    """A line is readable as it stands: UTF-8 not escaped, one object, fields in one order."""
    raw = DATA.read_bytes()
    assert raw.endswith(b"}\n")
    for line in raw.decode().removesuffix("\n").split("\n"):
        fields = json.loads(line)
        assert list(fields) == FIELDS
        assert json.dumps(fields, ensure_ascii=False) == line


def test_every_line_is_a_valid_command_and_becomes_a_valid_event() -> None:
    """The demo never meets a refusal that it did not ask for."""
    revisions: dict[str, int] = defaultdict(int)
    for number, publication in enumerate(publications(), 1):
        material_id = publication.pop("material_id")
        command = PublishMaterial.model_validate(publication)
        assert command.summary
        revisions[material_id] += 1
        fact = MaterialPublished.model_validate(
            {
                "material_id": material_id,
                "revision": revisions[material_id],
                "title": command.title,
                "slug": command.slug,
                "author": command.author,
                "published_at": "2026-01-31T12:00:00Z",
            }
        )
        event = material_published(f"event-{number}", fact)
        assert decode(encode(event)) == event


def test_there_is_enough_to_show() -> None:
    """Each lesson has a history of three to five revisions; together at least 64 publications."""
    assert sorted(by_material()) == LESSONS
    assert len(publications()) >= 64
    assert {len(history) for history in by_material().values()} <= {3, 4, 5}


def test_each_revision_changes_something() -> None:
    """No two neighbouring revisions are equal: a catalog that missed one shows it."""
    for history in by_material().values():
        for earlier, later in pairwise(history):
            assert earlier != later


def test_a_material_keeps_its_slug_and_shares_it_with_nobody() -> None:
    """A revision never moves a material to another address."""
    slugs = {
        material_id: {publication["slug"] for publication in history}
        for material_id, history in by_material().items()
    }
    assert all(len(names) == 1 for names in slugs.values())
    assert len(set.union(*slugs.values())) == len(slugs)


def test_the_histories_are_interleaved() -> None:
    """Revisions of different lessons mix, as in life: ordering per material is put to the test."""
    order = [publication["material_id"] for publication in publications()]
    neighbours = sum(one == other for one, other in pairwise(order))
    assert neighbours <= len(order) // 10
    finished = [max(i for i, name in enumerate(order) if name == lesson) for lesson in LESSONS]
    started = [order.index(lesson) for lesson in LESSONS]
    open_together = max(
        sum(a <= moment <= b for a, b in zip(started, finished, strict=True))
        for moment in range(len(order))
    )
    assert open_together >= 4


@pytest.mark.parametrize(
    ("script", "at_least"),
    [
        ("CYRILLIC", 8),
        ("HIRAGANA", 1),
        ("CJK UNIFIED", 2),
        ("ARABIC LETTER", 1),
        ("HEBREW LETTER", 1),
        ("COMBINING", 1),
        ("ZERO WIDTH JOINER", 1),
    ],
)
def test_titles_are_written_in_many_scripts(script: str, at_least: int) -> None:
    """The demo shows that text arrives whole in whatever script its author writes."""
    titles = {
        publication["title"]
        for publication in publications()
        if any(unicodedata.name(char, "").startswith(script) for char in publication["title"])
    }
    assert len(titles) >= at_least


def test_several_authors_write() -> None:
    """The audit log has more than one name in it."""
    assert len({publication["author"] for publication in publications()}) >= 6


def test_text_is_composed_except_where_it_is_not_on_purpose() -> None:
    """Each text is NFC, except those listed: the exceptions prove that nothing normalises."""
    found = {
        (field, publication[field])
        for publication in publications()
        for field in FIELDS
        if not unicodedata.is_normalized("NFC", publication[field])
    }
    assert found == DECOMPOSED


def test_the_texts_name_no_mailbox_and_no_address() -> None:
    """Invented people get no mail: no address of any kind is in data that a demo sends around."""
    assert not re.search(r"@|https?:|www\.", DATA.read_text(encoding="utf-8"))


def test_the_texts_have_no_stray_spaces_or_control_characters() -> None:
    """What people read in the demo is clean: no control character, no space at an end or doubled.

    A zero-width joiner is allowed, since it makes one emoji out of several.
    """
    for publication in publications():
        for field in FIELDS:
            text = publication[field]
            assert text == text.strip()
            assert "  " not in text
            odd = {char for char in text if unicodedata.category(char) in {"Cc", "Cf", "Co", "Cn"}}
            assert odd <= {"\u200d"}
