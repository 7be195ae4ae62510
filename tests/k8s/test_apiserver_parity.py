"""What the fake API server does, kube-apiserver does: each behaviour that other tests lean on, on both."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

CM, STS, LEASE = "api/v1/configmaps", "apis/apps/v1/statefulsets", "apis/coordination.k8s.io/v1/leases"
SLICES = "apis/discovery.k8s.io/v1/endpointslices"
STRATEGIC, JSON_PATCH = "application/strategic-merge-patch+json", "application/json-patch+json"


@pytest.fixture
def admin(server: Any, admin_of: Callable[[Any], Any]) -> Any:
    return admin_of(server)


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def stateful_set(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}
    template = {"metadata": {"labels": {"a": name}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"a": name}}
    spec = {"replicas": 1, "serviceName": name, "selector": selector, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def watched(admin: Any, base: str, seconds: int = 1, **query: Any) -> list[dict[str, Any]]:
    """All events of a watch."""
    query = {"watch": "True", "timeoutSeconds": seconds, **query}
    with admin.http.stream("GET", admin.path(base), params=query, timeout=60) as answer:
        return [json.loads(line) for line in answer.iter_lines()]


def version(item: dict[str, Any]) -> int:
    return int(item["metadata"]["resourceVersion"])


def test_conflicts(admin: Any) -> None:
    made = admin.do("POST", CM, body=config_map("c", x="1"))
    assert made["metadata"]["uid"]
    again = admin.answer("POST", CM, body=config_map("c"))
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    patched = admin.do("PATCH", CM, "c", {"data": {"x": "2"}})
    assert version(patched) > version(made)
    stale = admin.answer("PUT", CM, "c", {**made, "data": {"x": "9"}})
    assert (stale.status_code, stale.json()["reason"]) == (409, "Conflict")
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"x": "3"}}
    assert admin.answer("PATCH", CM, "c", old).status_code == 409
    assert version(admin.do("PUT", CM, "c", patched)) == version(patched)  # a write that changes nothing is none
    missing = admin.answer("GET", CM, "nope")
    assert (missing.status_code, missing.json()["reason"]) == (404, "NotFound")
    assert admin.answer("DELETE", CM, "c", {"preconditions": {"uid": "other"}}).status_code == 409


def test_creation(admin: Any) -> None:
    named = admin.do("POST", CM, body={"metadata": {"generateName": "gen-"}})
    assert named["metadata"]["name"].startswith("gen-")
    bad = admin.answer("POST", CM, body=config_map("Bad_Name"))
    assert (bad.status_code, bad.json()["reason"]) == (422, "Invalid")
    admin.do("POST", CM, body=config_map("dry"), dryRun="All")
    assert admin.answer("GET", CM, "dry").status_code == 404
    nowhere = admin.http.post(admin.path(CM, namespace="no-such"), json=config_map("c"))
    assert nowhere.status_code == 404


def test_scale_status_and_generation(admin: Any) -> None:
    assert admin.do("POST", STS, body=stateful_set("w"))["metadata"]["generation"] == 1
    scale = admin.do("GET", STS, "w/scale")
    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 1, "a=w")
    # 1. the patch that the scaler sends: a size, on the version that was read
    body = {"metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]}, "spec": {"replicas": 3}}
    assert admin.do("PATCH", STS, "w/scale", body)["spec"]["replicas"] == 3
    whole = admin.do("GET", STS, "w")
    assert (whole["spec"]["replicas"], whole["metadata"]["generation"]) == (3, 2)
    # 2. on an old version it is refused, put or patched
    assert admin.answer("PATCH", STS, "w/scale", body | {"spec": {"replicas": 5}}).status_code == 409
    assert admin.answer("PUT", STS, "w/scale", scale | {"spec": {"replicas": 9}}).status_code == 409
    # 3. status and spec are written apart
    admin.do("PATCH", STS, "w/status", {"status": {"replicas": 3, "readyReplicas": 2}})
    both = {"status": {"readyReplicas": 99}, "metadata": {"labels": {"z": "1"}}}
    after = admin.do("PATCH", STS, "w", both)
    assert (after["status"]["readyReplicas"], after["metadata"]["generation"]) == (2, 2)
    assert admin.do("GET", STS, "w/scale")["status"]["replicas"] == 3


def test_patches(admin: Any) -> None:
    admin.do("POST", STS, body=stateful_set("p"))
    more = {"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": "2"}]}]}}}}
    admin.do("PATCH", STS, "p", more, content_type=STRATEGIC)
    container = admin.do("GET", STS, "p")["spec"]["template"]["spec"]["containers"][0]
    assert {entry["name"] for entry in container["env"]} == {"A", "B"}
    test = {"op": "test", "path": "/spec/replicas", "value": 1}
    replace = {"op": "replace", "path": "/spec/replicas", "value": 4}
    assert admin.do("PATCH", STS, "p", [test, replace], content_type=JSON_PATCH)["spec"]["replicas"] == 4
    assert admin.answer("PATCH", STS, "p", [test, replace], content_type=JSON_PATCH).status_code == 422
    gone = admin.do("PATCH", STS, "p", {"metadata": {"labels": {"x": "1"}}})
    assert gone["metadata"]["labels"] == {"x": "1"}
    assert "x" not in admin.do("PATCH", STS, "p", {"metadata": {"labels": {"x": None}}})["metadata"].get("labels", {})


def test_selectors_and_pages(admin: Any) -> None:
    for number in range(5):
        admin.do("POST", CM, body=config_map(f"s{number}", {"grp": "s", "n": str(number)}))

    def names(**query: Any) -> list[str]:
        return [item["metadata"]["name"] for item in admin.do("GET", CM, **query)["items"]]

    assert names(labelSelector="grp=s,n in (1,2)") == ["s1", "s2"]
    assert names(labelSelector="grp=s,n notin (1,2),n!=0") == ["s3", "s4"]
    assert names(labelSelector="grp=s,!nope,n", fieldSelector="metadata.name=s3") == ["s3"]
    first = admin.do("GET", CM, labelSelector="grp=s", limit=2)
    rest = admin.do("GET", CM, labelSelector="grp=s", limit=10, **{"continue": first["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in first["items"]] == ["s0", "s1"]
    assert [item["metadata"]["name"] for item in rest["items"]] == ["s2", "s3", "s4"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert not rest["metadata"].get("continue")


def test_a_watch_resumes_and_tells_of_what_enters_and_leaves_its_selection(admin: Any) -> None:
    since = admin.do("GET", CM)["metadata"]["resourceVersion"]
    admin.do("POST", CM, body=config_map("t", {"pool": "decode"}))
    admin.do("PATCH", CM, "t", {"data": {"a": "1"}})
    admin.do("PATCH", CM, "t", {"metadata": {"labels": {"pool": "prefill"}}})
    admin.do("PATCH", CM, "t", {"metadata": {"labels": {"pool": "decode"}}})
    last = admin.do("DELETE", CM, "t")
    assert last
    events = watched(admin, CM, resourceVersion=since, labelSelector="pool=decode")
    assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    versions = [version(event["object"]) for event in events]
    assert versions == sorted(set(versions))
    assert watched(admin, CM, resourceVersion=versions[-1], labelSelector="pool=decode") == []


def test_bookmarks_move_along_while_nothing_of_ours_changes(admin: Any, server: Any) -> None:
    since = admin.do("GET", CM)["metadata"]["resourceVersion"]
    other = threading.Timer(0.5, lambda: admin.do("POST", CM, body=config_map("other")))
    other.start()
    seconds = 12 if server.real else 1
    query = {"resourceVersion": since, "allowWatchBookmarks": "true", "labelSelector": "none=x"}
    events = watched(admin, CM, seconds, **query)
    other.join()
    assert events
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert version(events[-1]["object"]) > int(since)


def test_lease_times_have_six_digits(admin: Any) -> None:
    def lease(name: str, time: str) -> dict[str, Any]:
        both = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        return {**both, "metadata": {"name": name}, "spec": {"renewTime": time, "holderIdentity": "a"}}

    made = admin.do("POST", LEASE, body=lease("good", "2035-01-01T00:00:00.000001Z"))
    assert made["spec"]["renewTime"] == "2035-01-01T00:00:00.000001Z"
    assert admin.do("POST", LEASE, body=lease("zeros", "2035-01-01T00:00:00.000000Z"))["spec"]["holderIdentity"] == "a"
    assert admin.answer("POST", LEASE, body=lease("bad", "2035-01-01T00:00:00Z")).status_code == 400


def test_finalizers(admin: Any) -> None:
    admin.do("POST", CM, body={"metadata": {"name": "f", "finalizers": ["x.example.com/drain"]}})
    admin.do("DELETE", CM, "f")
    assert admin.do("GET", CM, "f")["metadata"]["deletionTimestamp"]
    remove = [{"op": "remove", "path": "/metadata/finalizers"}]
    admin.do("PATCH", CM, "f", remove, content_type=JSON_PATCH)
    assert admin.answer("GET", CM, "f").status_code == 404


def test_endpoint_slices(admin: Any) -> None:
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "e", "labels": {"kubernetes.io/service-name": "decode"}},
        "addressType": "IPv4",
        "ports": [{"name": "control", "port": 5555, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    }
    admin.do("POST", SLICES, body=body)
    found = admin.do("GET", SLICES, labelSelector="kubernetes.io/service-name=decode")["items"]
    assert found[0]["endpoints"][0]["addresses"] == ["10.0.0.1"]


def test_autoscalers_can_be_listed(admin: Any) -> None:
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "w"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3}
    admin.do("POST", "apis/autoscaling/v1/horizontalpodautoscalers", body={"metadata": {"name": "h"}, "spec": spec})
    listed = admin.do("GET", "apis/autoscaling/v1/horizontalpodautoscalers")["items"]
    assert [item["spec"]["scaleTargetRef"] for item in listed] == [target]


def test_rights_are_those_of_the_role(admin: Any, server: Any) -> None:
    rbac = "apis/rbac.authorization.k8s.io/v1"
    base = {"headers": {"Authorization": "Bearer router-token"}}

    def status(method: str, path: str, **words: Any) -> tuple[int, str]:
        answer = admin.http.request(method, path, **base, **words)
        return answer.status_code, answer.json().get("message", "")

    code, message = status("GET", admin.path(SLICES))
    assert code == 403
    assert 'User "router" cannot list resource "endpointslices" in API group "discovery.k8s.io"' in message
    rules = [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "verbs": ["get"], "resourceNames": ["w"]},
    ]
    admin.do("POST", f"{rbac}/roles", body={"metadata": {"name": "r"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "router"}
    admin.do(
        "POST", f"{rbac}/rolebindings", body={"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]}
    )
    admin.do("POST", STS, body=stateful_set("w"))
    deadline = time.monotonic() + 5
    while status("GET", admin.path(SLICES))[0] != 200:
        assert time.monotonic() < deadline
    assert status("GET", admin.path(STS, "w/scale"))[0] == 200
    assert status("GET", admin.path(STS, "w"))[0] == 403
    assert status("GET", admin.path(STS, "other/scale"))[0] == 403
    assert admin.http.get(admin.path(SLICES), headers={"Authorization": "Bearer none"}).status_code == 401


def test_a_killed_server_comes_back_with_its_objects_but_not_their_history(admin: Any, server: Any) -> None:
    made = admin.do("POST", CM, body=config_map("kept", x="1"))
    admin.do("PATCH", CM, "kept", {"data": {"x": "2"}})
    server.kill()
    server.start()
    assert admin.do("GET", CM, "kept")["data"] == {"x": "2"}
    too_old = watched(admin, CM, resourceVersion=made["metadata"]["resourceVersion"])
    assert [(event["type"], event["object"].get("code")) for event in too_old] == [("ERROR", 410)]
    since = admin.do("GET", CM)["metadata"]["resourceVersion"]
    admin.do("PATCH", CM, "kept", {"data": {"x": "3"}})
    assert [event["object"]["data"]["x"] for event in watched(admin, CM, resourceVersion=since)] == ["3"]


def test_a_forgotten_version_is_gone(fake: Any, admin_of: Callable[[Any], Any]) -> None:
    """On the real server this takes five minutes and a compaction; its answer is the same (HTTP 200 and an event)."""
    admin = admin_of(fake)
    since = admin.do("POST", CM, body=config_map("a"))["metadata"]["resourceVersion"]
    fake.fault("compact")
    events = watched(admin, CM, resourceVersion=since)
    assert [event["type"] for event in events] == ["ERROR"]
    assert (events[0]["object"]["code"], events[0]["object"]["reason"]) == (410, "Expired")
