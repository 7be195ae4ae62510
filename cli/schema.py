"""`phaseserve schema`: the JSON schema of the settings file, made of the configs themselves, for editors and charts."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from contracts.request import Slo
from engine.config import EngineConfig
from k8s.config import KubernetesConfig
from kvtransfer.config import TransferConfig
from replica.config import ReplicaConfig
from router.config import RouterConfig
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "slo": Slo,
    "engine": EngineConfig,
    "scheduling": ReplicaCoreConfig,
    "cluster": ClusterCoreConfig,
    "transfer": TransferConfig,
    "replica": ReplicaConfig,
    "router": RouterConfig,
    "kubernetes": KubernetesConfig,
}


def settings_schema(definitions: str = "#/$defs/") -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the whole file, and what it refers to by `definitions`.

    Unknown names and values of a wrong type or outside a closed set are caught by it; ranges are checked by the
    configs themselves. Nothing is required: what the file leaves out comes from the command line or is a default.
    """
    _, found = msgspec.json.schema_components(SECTIONS.values(), ref_template=definitions + "settings.{name}")
    properties: dict[str, Any] = {"model": {"type": "string"}, "admission": {"type": "string"}}
    for section, kind in SECTIONS.items():
        properties[section] = {"$ref": f"{definitions}settings.{kind.__name__}"}
    properties["simulate"] = {"type": "object"}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema, {f"settings.{name}": _plain(part) for name, part in found.items()}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without titles, descriptions, defaults, and what is required."""
    dropped = {"title", "description", "default", "required"}
    plain = {key: value for key, value in schema.items() if key not in dropped}
    if "properties" in plain:
        plain["properties"] = {
            name: {key: value for key, value in inner.items() if key not in dropped}
            for name, inner in plain["properties"].items()
        }
    return plain


def run(words: list[str]) -> int:
    """Print it."""
    argparse.ArgumentParser(prog="phaseserve schema", description=__doc__).parse_args(words)
    schema, definitions = settings_schema()
    print(json.dumps(schema | {"$defs": definitions}, indent=1))
    return 0
