"""The chart's values: few, checked by name, and each of them changes what is rendered."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

CHART = Path(__file__).resolve().parents[3] / "k8s" / "chart"
Values = dict[str, Any]
Path_ = tuple[str, ...]

SECRETS = {"fleetSecret": "f" * 16, "controlSecret": "c" * 16, "adminToken": "a" * 16}
SCALED = {"replica": {"scaling": {"by": "hpa"}}}
GATEWAY = {"gateway": {"enabled": True, "name": "public"}}
CONTEXTS: dict[str, Values] = {
    "model.sizeGiB": {"model": {"minStartupSeconds": 1}},
    "model.readMiBPerSecond": {"model": {"minStartupSeconds": 1, "sizeGiB": 100}},
    "model.mountPath": {"model": {"source": "pvc"}},
    "model.pvc": {"model": {"source": "pvc"}},
    "model.image": {"model": {"source": "image", "image": {"reference": "models/a:1"}}},
    "model.download": {"model": {"source": "download", "download": {"command": ["fetch"]}}},
    "router.autoscaling": {"router": {"autoscaling": {"enabled": True}}},
    "replica.gpu": {"replica": {"gpu": {"count": 1}}},
    "replica.rdma": {"replica": {"rdma": {"count": 1}}},
    "replica.hugePages": {"replica": {"hugePages": {"amount": "1Gi"}}},
    "gateway.enabled": {"gateway": {"name": "public"}},
    "replica.updateSurge": {"replica": {"kind": "Deployment"}},
    "replica.scaling": SCALED,
    "kubernetes.scalingCooldownSeconds": {"pools": {"alternating": {"scaling": {"by": "planner"}}}},
    "ingress": {"ingress": {"enabled": True}},
    "ingress.host": {"ingress": {"enabled": True, "tlsSecret": "tls"}},
    "gateway": GATEWAY,
    "monitoring": {"monitoring": {"serviceMonitor": True, "dashboard": True}},
    "monitoring.prometheus": {"replica": {"scaling": {"by": "keda"}}},
}
"""What must be switched on for a value to matter; the longest prefix counts."""

SWITCHES = ("enabled", "count", "by", "serviceMonitor", "dashboard", "rules")
"""Leaves that are tried without their context, which switches the same thing on."""

SENTINELS: Values = {
    "image.repository": "sentinel.example.com/sentinel",
    "image.pullPolicy": "Never",
    "model.image.pullPolicy": "Never",
    "model.source": "pvc",
    "model.mountPath": "/sentinel",
    "model.pvc.accessMode": "ReadWriteOnce",
    "model.download.command": ["sentinel"],
    "model.servedNames": ["sentinel"],
    "image.pullSecrets": ["sentinel"],
    "secrets.apiKeys": ["sentinel-sentinel"],
    "router.service.type": "LoadBalancer",
    "router.autoscaling.cpuPercent": 43,
    "router.autoscaling.min": 3,
    "replica.scaling.min": 3,
    "replica.kind": "Deployment",
    "replica.gpu.resource": "sentinel.com/gpu",
    "replica.rdma.resource": "rdma/sentinel",
    "replica.hugePages.size": "1Gi",
    "replica.hugePages.amount": "43Gi",
    "replica.sharedMemory": "43Gi",
    "replica.cacheSize": "43Gi",
    "replica.scaling.by": "hpa",
    "replica.scaling.decodeOccupancy": 0.43,
    "replica.settings": {"engine": {"seed": 4343}},
    "replica.env": [{"name": "SENTINEL", "value": "1"}],
    "router.env": [{"name": "SENTINEL", "value": "1"}],
    "replica.tolerations": [{"key": "sentinel"}],
    "router.tolerations": [{"key": "sentinel"}],
    "gateway.hostnames": ["sentinel.example.com"],
    "networkPolicy.clients": [{"namespaceSelector": {"matchLabels": {"name": "sentinel"}}}],
    "networkPolicy.replicaEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.43/32"}}]}],
    "monitoring.interval": "43s",
    "router.port": 4343,
    "router.service.port": 4343,
    "pools.alternating.replicas": 43,
}
RENDERED: Values = {
    "model.sizeGiB": "failureThreshold: 26684",  # every 5 s: 3 readings of 4343 GiB at 100 MiB a second
    "model.readMiBPerSecond": "failureThreshold: 15",
    "model.minStartupSeconds": "failureThreshold: 869",
    "preStopSeconds": "terminationGracePeriodSeconds: 4663",
    "replica.hugePages.size": "hugepages-1Gi",
    "secrets.apiKeys": base64.b64encode(b"sentinel-sentinel").decode(),
    "replica.settings": "seed = 4343",
    "settings.router.drain_s": "terminationGracePeriodSeconds: 4368",
    "settings.replica.loop.drain_deadline_s": "terminationGracePeriodSeconds: 4368",
    "kubernetes.leaseSeconds": "duration_s = 4343",
    "replica.scaling.by": "kind: HorizontalPodAutoscaler",
    "networkPolicy.replicaEgress": "192.0.2.43/32",
    "model.source": "persistentVolumeClaim",
    "test.image": "sentinel-sentinel-sentinel",
}
"""What must appear where the value itself does not."""


def leaves(values: Values, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def defaults() -> Values:
    values: Values = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def all_leaves() -> list[tuple[str, Any]]:
    """Those of the values file, and those of `replica` once more, said by one pool for itself."""
    values = defaults()
    own = [(("pools", "alternating", *path), value) for path, value in leaves(values["replica"])]
    return [
        (".".join(path), value) for path, value in itertools.chain(leaves(values), own) if path[-1] != "replicas"
    ] + [
        ("router.replicas", 2),
        ("pools.alternating.replicas", 2),
        ("pools.mixed.replicas", 0),
    ]


def sentinel(name: str, default: Any) -> Any:
    plain = name.replace("pools.alternating.", "replica.") if name != "pools.alternating.replicas" else name
    if plain in SENTINELS:
        return SENTINELS[plain]
    match default:
        case bool():
            return not default
        case int() | float():
            return 4343
        case str():
            return "4343Mi" if ".resources." in name else "sentinel-sentinel-sentinel"
        case dict():
            return {"sentinel-key": "sentinel"}
    raise AssertionError(f"no sentinel for {name}")


def put(values: Values, name: str, value: Any) -> Values:
    *parents, last = name.split(".")
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return values


def context(name: str) -> Values:
    plain = name.replace("pools.alternating.", "replica.") if name != "pools.alternating.replicas" else name
    fitting = [prefix for prefix in CONTEXTS if plain == prefix or plain.startswith(prefix + ".")]
    switch = plain.split(".")[-1] in SWITCHES and plain not in CONTEXTS
    found: Values = {} if switch or not fitting else CONTEXTS[max(fitting, key=len)]
    return {**copy.deepcopy(found), "secrets": dict(SECRETS)}


def laid(base: Values, over: Values) -> Values:
    for name, value in over.items():
        below = base.get(name)
        base[name] = laid(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return base


def shown(value: Any) -> str:
    while isinstance(value, dict | list):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return str(value)


def test_every_value_changes_the_render_k8s_9(charted: Any, tmp_path: Path) -> None:
    """All at once: a chart that has this one as dependency under as many names as there are values to try."""
    shutil.copytree(CHART, tmp_path / "charts" / "phaseserve", ignore=shutil.ignore_patterns("values.schema.json"))
    schema = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    tried = all_leaves()
    assert len(tried) > 120
    contexts = list({json.dumps(context(name)): context(name) for name, _ in tried}.values())
    values: Values = {f"before{number}": context for number, context in enumerate(contexts)}
    for number, (name, default) in enumerate(tried):
        values[f"after{number}"] = put(context(name), name, sentinel(name, default))
        schema.validate(laid(defaults(), values[f"after{number}"]))  # Helm would do it again for each name
    needs = [{"name": "phaseserve", "alias": alias, "version": "*"} for alias in values]
    meta = {"apiVersion": "v2", "name": "all", "version": "1.0.0", "dependencies": needs}
    (tmp_path / "Chart.yaml").write_text(json.dumps(meta))
    lines: dict[str, list[str]] = {alias: [] for alias in values}
    alias = ""
    for line in charted.text(values, chart=tmp_path).splitlines():
        if line.startswith("# Source: "):
            alias = line.split("/")[2]
        elif alias:
            lines[alias].append(line.strip())
    wrong = []
    for number, (name, default) in enumerate(tried):
        before, after = lines[f"before{contexts.index(context(name))}"], lines[f"after{number}"]
        assert before, name
        added = "\n".join(Counter(after) - Counter(before))
        plain = name.replace("pools.alternating.", "replica.")
        wanted = RENDERED.get(plain, "" if isinstance(default, bool) else shown(sentinel(name, default)))
        if before == after or (wanted not in added and base64.b64encode(wanted.encode()).decode() not in added):
            wrong.append((name, wanted, added[:200]))
    assert not wrong, wrong


def test_values_are_few() -> None:
    assert (CHART / "values.yaml").read_text().count("\n") <= 150


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"router": {"replcas": 2}}, ("/router", "'replcas'")),
        ({"nonsense": 1}, ("'nonsense'",)),
        ({"pools": {"prefil": {"replicas": 1}}}, ("/pools", "'prefil'")),
        ({"pools": {"prefill": {"gpus": 1}}}, ("/pools/prefill", "'gpus'")),
        ({"router": {"replicas": "two"}}, ("/router/replicas", "want integer")),
        ({"replica": {"kind": "DaemonSet"}}, ("/replica/kind", "'StatefulSet', 'Deployment'")),
        ({"replica": {"ports": {"data": 70000}}}, ("/replica/ports/data", "65,?535")),
        ({"replica": {"cacheSize": "12Gigs"}}, ("/replica/cacheSize", "12Gigs")),
        ({"replica": {"scaling": {"by": "magic"}}}, ("/replica/scaling/by", "'planner'")),
        ({"settings": {"router": {"drian_s": 3}}}, ("/settings/router", "'drian_s'")),
        ({"settings": {"scheduling": {"max_running": "many"}}}, ("/settings/scheduling/max_running", "want integer")),
        ({"settings": {"router": {"port": 9000}}}, ("/settings/router", "'port'")),
        ({"settings": {"transfer": {"secret": "s" * 20}}}, ("/settings/transfer", "'secret'")),
        ({"settings": {"transfer": {"require": "rmda"}}}, ("/settings/transfer/require", "'rdma'")),
        ({"secrets": {"apiKeys": ["short"]}}, ("/secrets/apiKeys/0",)),
        ({"pools": {"alternating": {"replicas": 0}}}, ("at least one pool",)),
        ({"model": {"source": "download"}}, ("model.download.command",)),
        ({"model": {"source": "image"}}, ("model.image.reference",)),
        ({"gateway": {"enabled": True}}, ("gateway.name",)),
        (
            {"pools": {"alternating": {"scaling": {"by": "hpa", "backlogSeconds": 0, "decodeOccupancy": 0}}}},
            ("pools.alternating.scaling", "both 0"),
        ),
        ({"replica": {"scaling": {"by": "keda", "min": 5, "max": 2}}}, ("scaling.min", "scaling.max")),
        ({"pools": {"mixed": {"scaling": {"by": "planner"}}}}, ("pools.mixed: scaling.by planner",)),
        ({"replica": {"ports": {"data": 7000}}}, ("pools.alternating: ports",)),
        ({"labels": {"phaseserve.dev/role": "decode"}}, ("invalid propertyName", "'phaseserve.dev/role'")),
        ({"replica": {"podAnnotations": {"phaseserve.dev/settings": "x"}}}, ("'phaseserve.dev/settings'",)),
        ({"router": {"env": [{"name": "POD_NAME", "value": "x"}]}}, ("/router/env/0/name",)),
        ({"router": {"replicas": None}}, ("/router", "'replicas'")),
        ({"settings": {"router": {"drain_s": None}}}, ("/settings/router", "'drain_s'")),
        ({"settings": {"replica": {"loop": None}}}, ("/settings/replica", "'loop'")),
        ({"replica": {"gpu": None}}, ("/replica", "'gpu'")),
        ({"settings": {"cluster": {"layout": "disaggregated"}}}, ("settings.cluster.layout", "pools.")),
        ({"router": {"autoscaling": {"enabled": True, "min": 5, "max": 2}}}, ("router.autoscaling.min",)),
        ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, ("/podDisruptionBudget/maxUnavailable",)),
        (
            {"replica": {"networks": "fast", "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "other"}}},
            ("pools.alternating: networks and podAnnotations",),
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused_by_name(charted: Any, values: Values, named: tuple[str, ...]) -> None:
    said = charted.refusal(values)
    for part in named:
        assert part.replace("65,?535", "65,535") in said or part.replace("65,?535", "65535") in said, said
