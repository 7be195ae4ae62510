"""Who may do what: bearer tokens, and the rules of the stored roles and bindings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.k8s.apiserver.answers import Refusal
from tests.k8s.apiserver.resources import RBAC, Resource
from tests.k8s.apiserver.storage import Object, Store

ADMIN = "admin"


class Attempt(NamedTuple):
    """What somebody wants to do."""

    verb: str
    resource: Resource
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def what(self) -> str:
        """The resource as a role names it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def user_of(authorization: str, tokens: dict[str, str] | None) -> str:
    """The user of a token; without any tokens everybody is the administrator. Raises `Refusal` 401."""
    if tokens is None:
        return ADMIN
    user = tokens.get(authorization.removeprefix("Bearer "))
    if user is None:
        raise Refusal(401, "Unauthorized")
    return user


def authorize(store: Store, user: str, attempt: Attempt) -> None:
    """Raises `Refusal` 403, in the words of the real server."""
    if user == ADMIN or any(_allows(rule, attempt) for rule in _rules(store, user, attempt.namespace)):
        return
    where = f' in the namespace "{attempt.namespace}"' if attempt.namespace else " at the cluster scope"
    name = f" {json.dumps(attempt.name)}" if attempt.name else ""
    message = (
        f'{attempt.resource.full_name}{name} is forbidden: User "{user}" cannot {attempt.verb} resource '
        f'"{attempt.what}" in API group "{attempt.resource.group}"{where}'
    )
    raise Refusal(403, message, kind=attempt.resource.plural)


def _rules(store: Store, user: str, namespace: str | None) -> Iterator[Object]:
    def objects(plural: str) -> dict[tuple[str, str], Object]:
        return store.shelves[RBAC, "v1", plural].objects

    bindings = list(objects("clusterrolebindings").values())
    bindings += [item for (place, _), item in objects("rolebindings").items() if place == namespace]
    for binding in bindings:
        place = binding["metadata"].get("namespace", "")
        if not any(_is(subject, user, place) for subject in binding.get("subjects") or ()):
            continue
        reference = binding["roleRef"]
        of_cluster = reference["kind"] == "ClusterRole"
        roles = objects("clusterroles" if of_cluster else "roles")
        role = roles.get(("" if of_cluster else place, reference["name"]))
        yield from (role or {}).get("rules") or ()


def _is(subject: Object, user: str, namespace: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user == f"system:serviceaccount:{subject.get('namespace', namespace)}:{subject['name']}"
    return bool(subject["kind"] == "User" and user == subject["name"])


def _allows(rule: Object, attempt: Attempt) -> bool:
    def has(field: str, value: str) -> bool:
        return bool({value, "*"} & set(rule.get(field) or ()))

    names = rule.get("resourceNames")
    return (
        has("verbs", attempt.verb)
        and has("apiGroups", attempt.resource.group)
        and has("resources", attempt.what)
        and (not names or attempt.name in names)
    )
