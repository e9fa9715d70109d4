"""What README and data/ show is what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from delivery.asyncapi import document
from delivery.config import Config
from delivery.connection import BrokerSettings
from delivery.diagram import mermaid
from delivery.stores import Stores

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONFIG = Config(broker=BrokerSettings(url=""), stores=Stores(Path()))


def test_the_picture_is_drawn_from_the_code() -> None:
    """README's flowchart is the package's own topology."""
    (picture,) = re.findall(r"```mermaid\n(.*?)```", README, re.S)
    assert picture == mermaid(CONFIG.topology())


def test_every_link_leads_somewhere() -> None:
    """A file that README links to exists."""
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_asyncapi_file_is_the_document_of_the_code() -> None:
    """data/asyncapi.json was written by `delivery topology asyncapi`."""
    kept = json.loads((ROOT / "data/asyncapi.json").read_text(encoding="utf-8"))
    assert kept == document(CONFIG.topology())
