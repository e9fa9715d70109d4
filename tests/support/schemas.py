"""Values that the JSON Schemas of an OpenAPI document allow; an unknown keyword is an error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["values_of"]

SAID = {"title", "description", "default"}


def values_of(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for what *schema* allows; its references lead into *document*."""
    name = json.dumps(schema)
    if name not in _made:
        _made[name] = _values_of(schema, document)
    return _made[name]


_made: dict[str, st.SearchStrategy[Any]] = {}  # to make one takes longer than to draw from it


def _values_of(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[Any]:
    keys = schema.keys() - SAID
    if keys == {"$ref"}:
        return values_of(_resolved(schema["$ref"], document), document)
    if keys == {"anyOf"}:
        return st.one_of([values_of(each, document) for each in schema["anyOf"]])
    return _TYPES[schema["type"]](schema, keys - {"type"}, document)


def _resolved(reference: str, document: dict[str, Any]) -> dict[str, Any]:
    found: Any = document
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    assert isinstance(found, dict)
    return found


def _text(schema: dict[str, Any], keys: set[str], _: object) -> st.SearchStrategy[Any]:
    assert keys <= {"pattern", "maxLength"}, keys
    longest = schema.get("maxLength", 200)
    if "pattern" not in schema:
        return st.text(max_size=min(longest, 200))
    # In JSON Schema a dollar sign is the very end, in Python there may be a newline before it.
    pattern = schema["pattern"].removesuffix("$") + r"\Z"
    return st.from_regex(pattern).filter(lambda text: len(text) <= longest)


def _number(schema: dict[str, Any], keys: set[str], _: object) -> st.SearchStrategy[Any]:
    assert keys <= {"minimum", "maximum", "exclusiveMaximum"}, keys
    most = schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - 1
    return st.integers(int(schema["minimum"]), int(most))


def _object(
    schema: dict[str, Any], keys: set[str], document: dict[str, Any]
) -> st.SearchStrategy[Any]:
    assert keys <= {"properties", "required", "additionalProperties"}, keys
    fields = {name: values_of(each, document) for name, each in schema["properties"].items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: each for name, each in fields.items() if name in required},
        optional={name: each for name, each in fields.items() if name not in required},
    )


_TYPES = {
    "string": _text,
    "integer": _number,
    "object": _object,
    "null": lambda *_: st.none(),
}
