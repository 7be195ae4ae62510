"""Label and field selectors, and the selection that a list or a watch asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.k8s.apiserver.storage import Object, Shelf

_BETWEEN = re.compile(r",(?![^()]*\))")
_SET = re.compile(r"([^\s!=]+)\s+(in|notin)\s+\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a shelf somebody asked for."""

    namespace: str | None
    labels: str
    fields: str

    @classmethod
    def of(cls, query: Mapping[str, str], namespace: str | None) -> Selection:
        """From the parameters of a request."""
        return cls(namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))

    def has(self, item: Object) -> bool:
        """Whether the object is meant."""
        metadata = item["metadata"]
        if self.namespace is not None and metadata.get("namespace") != self.namespace:
            return False
        return _labels_match(self.labels, metadata.get("labels") or {}) and _fields_match(self.fields, item)

    def of_shelf(self, shelf: Shelf) -> list[Object]:
        """In order of namespace and name."""
        return [item for _, item in sorted(shelf.objects.items()) if self.has(item)]


def dig(item: Any, path: tuple[str, ...], default: Any = None) -> Any:
    """What lies at a path, or the default."""
    for name in path:
        if not isinstance(item, dict) or name not in item:
            return default
        item = item[name]
    return item


def _labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    return all(_label_holds(term.strip(), labels) for term in _BETWEEN.split(selector) if term.strip())


def _label_holds(term: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(term):
        values = {value.strip() for value in found[3].split(",")}
        return (labels.get(found[1]) in values) == (found[2] == "in")
    if "!=" in term:
        name, value = term.split("!=", 1)
        return labels.get(name.strip()) != value.strip()
    if "=" in term:
        name, value = re.split("==?", term, maxsplit=1)
        return labels.get(name.strip()) == value.strip()
    return term[1:] not in labels if term.startswith("!") else term in labels


def _fields_match(selector: str, item: Object) -> bool:
    for term in filter(None, selector.split(",")):
        name, value = re.split("!=|==?", term, maxsplit=1)
        if (str(dig(item, tuple(name.split(".")), "")) == value) == ("!=" in term):
            return False
    return True
