"""What the notes of lesson 11 rest on: the commit that makes a fact true also announces it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from delivery import materials, outbox
from delivery.contract import PublishMaterial
from delivery.materials import accept
from delivery.points import arm
from delivery.store import open_store


def test_at_the_moment_of_the_commit_the_event_is_there(tmp_path: Path) -> None:
    """A process that dies right after it leaves a material and its event, not one of them."""

    def die() -> None:
        raise KeyboardInterrupt

    arm("materials.committed", die)
    with closing(open_store(tmp_path / "db", materials.SCHEMA, outbox.SCHEMA)) as store:
        with pytest.raises(KeyboardInterrupt):
            accept(store, "m-1", PublishMaterial(title="T", slug="t", author="A"), key="k-1")

        assert store.execute("SELECT count(*) FROM material").fetchone() == (1,)
        assert store.execute("SELECT count(*) FROM outbox").fetchone() == (1,)
