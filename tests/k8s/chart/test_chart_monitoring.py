"""Dashboard, alerts and what pools are scaled by speak of metrics that the router has, and mean what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from router.metrics import RouterMetrics
from scheduling.cluster_snapshot import PlannerSnapshot

NAMESPACE = "serving"
OF = f'namespace="{NAMESPACE}",service="demo-router"'
OTHER = f'namespace="{NAMESPACE}",service="demo-mixed-router"'


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here (Debian: package prometheus): rules are not evaluated")
    return found


@pytest.fixture(scope="session")
def router_metrics(metrics_registry: RouterMetrics) -> dict[str, set[str]]:
    """Each sample's name, with the names of its labels where a fresh router already has some."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics_registry.text().decode()):
        names = {sample.name for sample in family.samples}
        match family.type:
            case "counter":
                names.add(f"{family.name}_total")
            case "histogram":
                names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
            case _:
                names.add(family.name)
        for name in names:
            found[name] = set()
    return found


@pytest.fixture(scope="session")
def metrics_registry() -> RouterMetrics:
    """A router's metrics, with the planner's among them."""
    metrics = RouterMetrics()
    metrics._fleet._planner = PlannerSnapshot(enabled=True)
    return metrics


def dashboard(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [one for one in documents if one["metadata"]["name"] == "demo-dashboard"]
    shown: dict[str, Any] = json.loads(found["data"]["demo.json"])
    return shown


def groups(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (found,) = [one["spec"]["groups"] for one in documents if one["kind"] == "PrometheusRule"]
    rules: list[dict[str, Any]] = found
    return rules


def expressions(documents: list[dict[str, Any]]) -> dict[str, str]:
    """Every PromQL expression in a rendering, by where it is."""
    panels = dashboard(documents)["panels"]
    found = {f"panel {one['title']} {at['refId']}": at["expr"] for one in panels for at in one.get("targets", [])}
    for group in groups(documents):
        found |= {f"rule {rule.get('record') or rule['alert']} {number}": rule["expr"]
                  for number, rule in enumerate(group["rules"])}  # fmt: skip
    for one in documents:
        if one["kind"] == "ScaledObject":
            triggers = one["spec"]["triggers"]
            found |= {f"keda {one['metadata']['name']} {at['name']}": at["metadata"]["query"] for at in triggers}
    return found


def test_every_expression_is_about_metrics_that_exist(
    charted: Any, everything: dict[str, Any], router_metrics: dict[str, set[str]], metrics_of: Any
) -> None:
    found = expressions(charted.documents(everything, namespace=NAMESPACE))
    assert len(found) > 50
    missing = {where: metrics_of(expr) - set(router_metrics) for where, expr in found.items()}
    assert not {where: names for where, names in missing.items() if names}
    assert all(metrics_of(expr) for expr in found.values())


def test_the_external_metrics_of_hpas_are_recorded(charted: Any, everything: dict[str, Any]) -> None:
    documents = charted.documents(everything, namespace=NAMESPACE)
    recorded = {(rule["record"], rule["labels"]["pool"]) for rule in groups(documents)[0]["rules"]}
    for one in documents:
        if one["kind"] == "HorizontalPodAutoscaler" and one["metadata"]["name"] != "demo-router":
            for metric in one["spec"]["metrics"]:
                asked = metric["external"]["metric"]
                assert (asked["name"], asked["selector"]["matchLabels"]["pool"]) in recorded


def test_panels_do_not_overlap(charted: Any, everything: dict[str, Any]) -> None:
    shown = dashboard(charted.documents(everything, namespace=NAMESPACE))
    cells: set[tuple[int, int]] = set()
    for panel in shown["panels"]:
        place = panel["gridPos"]
        covered = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                   for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert max(x for x, _ in covered) < 24
        assert not covered & cells, panel["title"]
        cells |= covered
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])
    names = {one["name"]: one.get("query") for one in shown["templating"]["list"]}
    assert names == {"datasource": "prometheus", "namespace": NAMESPACE, "service": "demo-router"}


def test_prometheus_reads_every_expression(
    charted: Any, everything: dict[str, Any], promtool: str, tmp_path: Path
) -> None:
    found = expressions(charted.documents(everything, namespace=NAMESPACE))
    rules = [
        {"record": f"e{number}", "expr": re.sub(r"\$__rate_interval", "1m", expr)}
        for number, expr in enumerate(found.values())
    ]
    file = tmp_path / "rules.yml"
    whole = groups(charted.documents(everything, namespace=NAMESPACE))  # with the templates of their annotations
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}, *whole]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _case(series: dict[str, str], alert: str, at: str, fires: bool, labels: dict[str, str]) -> dict[str, Any]:
    wanted = [{"exp_labels": labels}] if fires else []
    inputs = [{"series": f"{name[:-1]},{OF}}}" if name.endswith("}") else f"{name}{{{OF}}}", "values": values}
              for name, values in series.items()]  # fmt: skip
    test = {"eval_time": at, "alertname": alert, "exp_alerts": wanted}
    return {"interval": "15s", "input_series": inputs, "alert_rule_test": [test]}


def _buckets(metric: str, below: int, over: int) -> dict[str, str]:
    """Observations per scrape: `below` up to 0.1 s, `over` between 5 and 20 s."""
    bounds = {"0.1": below, "5": below, "20": below + over, "+Inf": below + over}
    return {f'{metric}_bucket{{le="{le}"}}': f"0+{count}x60" for le, count in bounds.items()}


def test_alerts_fire_when_they_should_and_not_before(
    charted: Any, everything: dict[str, Any], promtool: str, tmp_path: Path
) -> None:
    plain = groups(charted.documents(everything, namespace=NAMESPACE))
    for group in plain:
        for rule in group["rules"]:
            rule.pop("annotations", None)  # else each case would have to repeat them
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": plain}))
    requests = 'phaseserve_requests_total{{endpoint="chat",outcome="{}"}}'
    ends = [f'phaseserve_handoffs_total{{outcome="{end}"}}' for end in ("completed", "failed")]
    both = {"severity": "critical"}, {"severity": "warning"}
    where = {"namespace": NAMESPACE, "service": "demo-router"}
    age = 'phaseserve_replica_view_age_seconds{replica="r0"}'
    usable = 'phaseserve_link_usable{replica="p0",peer="d0"}'
    checksum = 'phaseserve_replica_checksum_errors_total{replica="d0"}'
    cases = [
        _case({}, "PhaseServeNoReplica", "3m", True, both[0] | where),
        _case({age: "0x60"}, "PhaseServeNoReplica", "3m", False, {}),
        _case({age: "0+15x60"}, "PhaseServeReplicaSilent", "3m", True, both[1] | {"replica": "r0"}),
        _case({age: "0.1x60"}, "PhaseServeReplicaSilent", "3m", False, {}),
        _case(_buckets("phaseserve_ttft_seconds", 5, 5), "PhaseServeTTFTOverTarget", "14m", True, both[1]),
        _case(_buckets("phaseserve_ttft_seconds", 99, 1), "PhaseServeTTFTOverTarget", "14m", False, {}),
        _case(_buckets("phaseserve_tpot_seconds", 5, 5), "PhaseServeTPOTOverTarget", "14m", True, both[1]),
        _case(_buckets("phaseserve_tpot_seconds", 99, 1), "PhaseServeTPOTOverTarget", "14m", False, {}),
        _case({requests.format("stop"): "0+9x60", requests.format("overloaded"): "0+1x60"},
              "PhaseServeRefusing", "14m", True, both[1]),
        _case({requests.format("stop"): "0+99x60", requests.format("overloaded"): "0+1x60"},
              "PhaseServeRefusing", "14m", False, {}),
        _case({requests.format("stop"): "0+9x60", requests.format("error"): "0+1x60"},
              "PhaseServeErrors", "14m", True, both[0]),
        _case({requests.format("stop"): "0+9x60", requests.format("error"): "0+0x60"},
              "PhaseServeErrors", "14m", False, {}),
        _case(dict(zip(ends, ("0+9x60", "0+1x60"), strict=True)), "PhaseServeHandoffsFail", "14m", True, both[1]),
        _case(dict(zip(ends, ("0+99x60", "0+1x60"), strict=True)), "PhaseServeHandoffsFail", "14m", False, {}),
        _case({checksum: "0x20 1x40"}, "PhaseServeKVDamaged", "8m", True, both[0] | {"replica": "d0"}),
        _case({checksum: "3x60"}, "PhaseServeKVDamaged", "8m", False, {}),
        _case({usable: "0x60"}, "PhaseServeLinkUnusable", "8m", True, both[1] | {"replica": "p0", "peer": "d0"}),
        _case({usable: "1x60"}, "PhaseServeLinkUnusable", "8m", False, {}),
    ]  # fmt: skip
    tested = {case["alert_rule_test"][0]["alertname"] for case in cases}
    assert tested == {rule["alert"] for rule in plain[1]["rules"]}
    test_file = tmp_path / "test.yml"
    test_file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": cases}))
    command = [promtool, "test", "rules", str(test_file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_pools_are_scaled_by(charted: Any, everything: dict[str, Any], promtool: str, tmp_path: Path) -> None:
    """Two routers tell of the same two replicas; what waits at both counts; another release does not, though its name
    begins with ours and a pool's. Of routers that nobody scrapes there is no value: 0 would make their pools small."""
    documents = charted.documents(everything, namespace=NAMESPACE)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": groups(documents)[:1]}))
    series = {
        f'phaseserve_replica_backlog_seconds{{replica="demo-mixed-0",pod="a",{OF}}}': "2x10",
        f'phaseserve_replica_backlog_seconds{{replica="demo-mixed-0",pod="b",{OF}}}': "3x10",
        f'phaseserve_replica_backlog_seconds{{replica="demo-mixed-1",pod="a",{OF}}}': "4x10",
        f'phaseserve_replica_backlog_seconds{{replica="demo-prefill-0",pod="a",{OF}}}': "100x10",
        'phaseserve_replica_backlog_seconds{replica="demo-mixed-0",namespace="other"}': "1000x10",
        f'phaseserve_replica_backlog_seconds{{replica="demo-mixed-decode-0",{OTHER}}}': "1000x10",
        f"phaseserve_pending_prefill_seconds{{{OTHER}}}": "1000x10",
        f'phaseserve_pending_prefill_seconds{{pod="a",{OF}}}': "5x10",
        f'phaseserve_pending_prefill_seconds{{pod="b",{OF}}}': "6x10",
        f'phaseserve_replica_running{{replica="demo-decode-0",pod="a",{OF}}}': "32x10",
        f'phaseserve_replica_running{{replica="demo-decode-1",pod="b",{OF}}}': "16x10",
    }
    wanted = {("backlog_seconds", "mixed"): 3 + 4 + 11, ("decode_occupancy", "decode"): 48 / 64,
              ("backlog_seconds", "alternating"): 11}  # fmt: skip
    tests = [
        {"expr": f'phaseserve_pool_{metric}{{pool="demo-{pool}"}}', "eval_time": "1m",
         "exp_samples": [{"labels": f'phaseserve_pool_{metric}{{namespace="{NAMESPACE}",pool="demo-{pool}"}}',
                          "value": value}]}
        for (metric, pool), value in wanted.items()
    ]  # fmt: skip
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    case = {"interval": "15s", "input_series": inputs, "promql_expr_test": tests}
    silence = [{"expr": f"phaseserve_pool_{metric}", "eval_time": "1m", "exp_samples": []} for metric, _ in wanted]
    silent = {"interval": "15s", "input_series": [{"series": "up", "values": "0x10"}], "promql_expr_test": silence}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case, silent]}))
    command = [promtool, "test", "rules", "test.yml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pool_has_one_owner_of_its_size(charted: Any, everything: dict[str, Any], workloads: Any) -> None:
    documents = charted.documents(everything)
    owners: dict[str, list[str]] = {}
    for one in documents:
        if one["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            owners.setdefault(one["spec"]["scaleTargetRef"]["name"], []).append(one["kind"])
    assert owners == {
        "demo-router": ["HorizontalPodAutoscaler"],
        "demo-mixed": ["HorizontalPodAutoscaler"],
        "demo-prefill": ["ScaledObject"],
        "demo-decode": ["ScaledObject"],
    }
    sizes = {name: workload["spec"]["replicas"] for name, workload in workloads(documents).items()}
    assert sizes == {"demo-router": 2, "demo-alternating": 2, "demo-mixed": 1, "demo-prefill": 1, "demo-decode": 1}
    targets = {one["metadata"]["name"]: [at["name"] for at in one["spec"]["triggers"]]
               for one in documents if one["kind"] == "ScaledObject"}  # fmt: skip
    assert targets == {"demo-prefill": ["backlog-seconds"], "demo-decode": ["decode-occupancy"]}
    triggers = [at for one in documents if one["kind"] == "ScaledObject" for at in one["spec"]["triggers"]]
    assert all(at["metadata"]["ignoreNullValues"] == "false" for at in triggers), "KEDA takes silence for 0"
