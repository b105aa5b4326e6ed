"""The format of each kind of file, from the dataclasses' annotations: for the reader and as JSON Schema.

    batch_size: Annotated[int, AtLeast(1)]          # a bound
    mode: Annotated[str, OneOf(MODES)]              # an enumeration
    saved_bytes: int                                # a quantity (see QUANTITY): at least 0, without saying so

Both what reads files (osdp/base/schema_reader.py) and `json_schema` (osdp/schemas/*.schema.json, by tools/schema.py) come
from the same shapes, so they always agree on the valid values of a field.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any

from osdp.base import file_versions
from osdp.base.strict_json import MAX_TEXT

INT64 = (-(2**63), 2**63 - 1)

# Numbers with these names are quantities, which are not negative.
QUANTITY = re.compile(r"_(bytes|s|ps|per_byte|per_sample|fixed)$")


@dataclass(frozen=True)
class OneOf:
    """The texts that a field may hold."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class AtLeast:
    """The least number that a field may hold; with `strictly`, it must be more than that."""

    minimum: int
    strictly: bool = False


@dataclass(frozen=True)
class Shape:
    """One type."""

    kind: str  # "boolean", "integer", "number", "text", "list", "tuple", "object", "map", "any"
    nullable: bool = False
    items: tuple[Shape, ...] = ()  # list, map: the one of all values; tuple, object: one for each
    names: tuple[str, ...] = ()  # object: its fields; all are required, no others allowed
    allowed: tuple[str, ...] = ()  # text; (): any
    minimum: int | None = None  # integer, number
    above_minimum: bool = False  # the bound is exclusive
    cls: type | None = None  # object: the dataclass


def shape_of(cls: type) -> Shape:
    """The shape of a dataclass of ours. TypeError for an annotation that no file can hold."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = tuple(f.name for f in fields(cls))
    return Shape("object", items=tuple(_shape(hints[name], name) for name in names), names=names, cls=cls)


def _shape(hint: Any, name: str, rules: tuple[object, ...] = (), nullable: bool = False) -> Shape:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _shape(inner[0], name, (*rules, *inner[1:]), nullable)
    if origin in (types.UnionType, typing.Union):
        rest = [t for t in inner if t is not types.NoneType]
        if len(rest) == 1:
            return _shape(rest[0], name, rules, True)
    elif isinstance(hint, type) and is_dataclass(hint):
        shape = shape_of(hint)
        return Shape("object", nullable, shape.items, shape.names, cls=shape.cls)
    elif origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return Shape("list", nullable, (_shape(inner[0], name),))
    elif origin is tuple:
        return Shape("tuple", nullable, tuple(_shape(t, name) for t in inner))
    elif isinstance(origin, type) and issubclass(origin, Mapping) and inner[0] is str:
        return Shape("map", nullable, (_shape(inner[1], name),))
    elif hint is bool:
        return Shape("boolean", nullable)
    elif hint is object:
        return Shape("any", nullable)
    elif hint is str:
        texts = [rule.texts for rule in rules if isinstance(rule, OneOf)]
        return Shape("text", nullable, allowed=texts[0] if texts else ())
    elif hint in (int, float):
        bounds = [rule for rule in rules if isinstance(rule, AtLeast)]
        bound = bounds[0] if bounds else AtLeast(0) if QUANTITY.search(name) else None
        kind = "integer" if hint is int else "number"
        if bound is None:
            return Shape(kind, nullable)
        return Shape(kind, nullable, minimum=bound.minimum, above_minimum=bound.strictly)
    raise TypeError(f"{name}: a file cannot hold {hint}")


def json_schema(kind: str, cls: type, identifier: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of files of `kind` in the newest version.

    An integer there is one without fraction or exponent.
    """
    definitions: dict[str, Any] = {}
    body = _definition(shape_of(cls), definitions)
    header = {
        "osdp": {"const": kind},
        "version": {"type": "integer", "const": file_versions.newest(kind)},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": identifier,
        "title": f"OSDP {kind}",
        **body,
        "required": ["osdp", "version", *body["required"]],
        "properties": header | body["properties"],
        "$defs": dict(sorted(definitions.items())),
    }


def _definition(shape: Shape, definitions: dict[str, Any]) -> dict[str, Any]:
    assert shape.cls is not None
    return {
        "description": " ".join((shape.cls.__doc__ or "").strip().split("\n\n")[0].split()),
        "type": "object",
        "additionalProperties": False,
        "required": list(shape.names),
        "properties": {
            name: _node(item, definitions) for name, item in zip(shape.names, shape.items, strict=True)
        },
    }


def _node(shape: Shape, definitions: dict[str, Any]) -> dict[str, Any]:
    if shape.nullable:
        return {"anyOf": [{"type": "null"}, _node(replace(shape, nullable=False), definitions)]}
    if shape.kind == "any":
        return {}
    if shape.kind == "boolean":
        return {"type": "boolean"}
    if shape.kind in ("integer", "number"):
        node: dict[str, Any] = {"type": shape.kind}
        if shape.kind == "integer":
            node |= {"minimum": INT64[0], "maximum": INT64[1]}
        if shape.minimum is not None:
            node.pop("minimum", None)
            node["exclusiveMinimum" if shape.above_minimum else "minimum"] = shape.minimum
        return node
    if shape.kind == "text":
        return {"enum": list(shape.allowed)} if shape.allowed else {"type": "string", "maxLength": MAX_TEXT}
    if shape.kind == "list":
        return {"type": "array", "items": _node(shape.items[0], definitions)}
    if shape.kind == "tuple":
        items = [_node(item, definitions) for item in shape.items]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if shape.kind == "map":
        values = _node(shape.items[0], definitions)
        return {"type": "object", "propertyNames": {"maxLength": MAX_TEXT}, "additionalProperties": values}
    assert shape.cls is not None
    name = shape.cls.__name__
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = _definition(shape, definitions)
    return {"$ref": f"#/$defs/{name}"}
