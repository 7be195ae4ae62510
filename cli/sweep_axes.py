"""The axes of a sweep: what each is called, how its values are written, and the cases of their grid."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cli.asked import DATA, Asked, scenario_of
from cli.overlay import merge, parse_assignment
from contracts.errors import ConfigError
from contracts.phase import Role
from simulator.grid import Case
from simulator.layouts import WORDS
from simulator.links import BYTES_PER_GBIT
from simulator.scenario import Scenario

Label = str | int | float
MAX_CASES = 100_000
KV_BYTES = "kv_bytes_per_token"
"""A label of every case: of the first group of replicas."""
_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")
_SPACED = 1.0 + 1e-9
_EXACT = 2**53
"""From there on text that is read as a number may be another whole number than was written."""


class Axis(msgspec.Struct, frozen=True):
    """A named axis: the label it becomes, how one value is read, what `--help` says."""

    label: str
    kind: type[str | int | float]
    tells: str


AXES: dict[str, Axis] = {
    "model": Axis("model", str, "models by name or file, as for `simulate`; want --hardware"),
    "hardware": Axis("hardware", str, "hardware by name or file; wants --model"),
    "tp": Axis("tp", int, "devices that share each layer (default 1)"),
    "pp": Axis("pp", int, "pipeline stages (default 1)"),
    "replicas": Axis("replicas", int, "how many each layout has (default 2)"),
    "layout": Axis("layout", str, f"{WORDS} (default phased)"),
    "link-rate": Axis("link_gbit_s", float, "of each host, each way, Gbit/s (default 10)"),
    "data": Axis("data", str, f"{', '.join(DATA)} (default sharegpt)"),
    "trace": Axis("trace", str, "recorded arrivals and lengths, instead of --data; the rate scales their time"),
    "slo": Axis("slo", str, "targets as TTFT:TPOT, seconds (default 5:0.1)"),
    "duration": Axis("duration_s", float, "seconds of arrivals (default 60)"),
    "rate": Axis("rate", float, "mean rates of arrivals, requests per second (default 4)"),
    "seed": Axis("seed", int, "runs that differ by chance only; tables have each, plots their mean (default 0)"),
}
"""In the order of the grid: the last one changes from case to case."""
_SETTINGS = {
    "data": ("simulate.workload.prompt", "simulate.workload.output"),
    "trace": ("simulate.workload.trace",),
    "slo": ("slo",),
    "duration": ("simulate.duration_s",),
    "rate": ("simulate.workload.arrivals.rate",),
    "seed": ("simulate.seed",),
}
"""What axes set, by the names of `vary`."""


def values_of(name: str, given: object) -> tuple[Label, ...]:
    """The values of an axis: a list, one value, or text: `1,2,5`, and for numbers `LOW:HIGH:STEP`.

    Raises `ConfigError` for an axis without a value, and for a value that is none.
    """
    axis = AXES[name]
    parts: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    found = [value for part in parts for value in _parts(name, axis, part)]
    if not found:
        raise ConfigError(f"{name} has no value: the grid would be empty", param=name)
    return tuple(dict.fromkeys(found))


def variations_of(given: Mapping[str, object]) -> dict[str, tuple[Label, ...]]:
    """Dotted settings with the values that each takes. Raises `ConfigError`."""
    found: dict[str, tuple[Label, ...]] = {}
    for name, values in given.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"vary {name}: a list of values is wanted, e.g. [1, 2]", param="vary")
        if not all(isinstance(value, str | int | float) for value in values):
            raise ConfigError(f"vary {name}: each value must be a number or text", param="vary")
        found[name] = tuple(dict.fromkeys(values))
    return found


def parse_variation(text: str) -> tuple[str, object]:
    """`scheduling.max_chunk=[512, 2048]`, as on the command line. Raises `ConfigError`."""
    name, equals, raw = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--vary {text!r} is not of the form section.name=[value, value]", param="--vary")
    try:
        values = tomllib.loads(f"values = {raw}")["values"]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--vary {text!r}: {error}", param="--vary") from error
    return name.strip(), values


def cases_of(
    layers: Sequence[dict[str, Any]],
    axes: Mapping[str, tuple[Label, ...]],
    variations: Mapping[str, tuple[Label, ...]],
    leave_out: Callable[[str], None] | None = None,
) -> list[Case]:
    """The whole grid, every case checked. What is impossible is told to `leave_out` and left out, where there is one.
    Where nobody hands KV over, cases that differ in the link rate only are one scenario, so that it is run once.

    Raises `ConfigError` for the first case that is impossible, for none at all, for too many, and where an axis and a
    variation are the same setting: each row would tell two values of it.
    """
    _check_apart(axes, variations)
    order = [*variations, *(name for name in AXES if name in axes)]
    values = [variations[name] if name in variations else axes[name] for name in order]
    links = axes.get("link-rate", ())
    count = math.prod(map(len, values))
    if count > MAX_CASES:
        raise ConfigError(f"the grid has {count} cases; {MAX_CASES} are the most", param="grid")
    found = []
    for combination in itertools.product(*values):
        chosen = dict(zip(order, combination, strict=True))
        try:
            found.append(_case(layers, chosen, links[:1] if len(links) > 1 else ()))
        except ConfigError as error:
            told = ", ".join(f"{name} {value}" for name, value in chosen.items())
            if leave_out is None:
                raise ConfigError(f"{error.message} (at {told})" if told else error.message) from error
            leave_out(f"left out: {told}: {error.message}")
    if not found:
        raise ConfigError("no case of the grid is possible", param="grid")
    return found


def _check_apart(axes: Mapping[str, object], variations: Mapping[str, object]) -> None:
    for axis in axes:
        for setting in _SETTINGS.get(axis, ()):
            for varied in variations:
                if f"{varied}.".startswith(f"{setting}.") or f"{setting}.".startswith(f"{varied}."):
                    raise ConfigError(f"--{axis} and vary {varied} are the same setting: say it once", param="vary")


def label_of(name: str) -> str:
    """What an axis, or a setting, is called in tables."""
    return AXES[name].label if name in AXES else name


def _case(layers: Sequence[dict[str, Any]], chosen: Mapping[str, Label], link: Sequence[Label]) -> Case:
    """`link`: the link rate at which a case is run whose layout makes no use of links, if another one is asked for."""
    settings: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name, value in chosen.items():
        if name == "slo":
            named["ttft_s"], named["tpot_s"] = _targets(str(value))
        elif name in AXES:
            named[AXES[name].label] = value
        else:
            settings = merge(settings, _nested(name, value))
    scenario = scenario_of([*layers, settings], Asked(**named))
    if link and _in_place(scenario):
        link_bytes_per_s = float(link[0]) * BYTES_PER_GBIT
        fleet = (msgspec.structs.replace(group, link_bytes_per_s=link_bytes_per_s) for group in scenario.fleet)
        scenario = msgspec.structs.replace(scenario, fleet=tuple(fleet))
    labels = {label_of(name): value for name, value in chosen.items()}
    return Case({**labels, KV_BYTES: scenario.fleet[0].kv.layout.bytes_per_token}, scenario)


def _in_place(scenario: Scenario) -> bool:
    """Whether every request stays on one replica: there are no pools, and nobody changes roles or the fleet."""
    whole = all(group.role in (Role.ALTERNATING, Role.MIXED) for group in scenario.fleet)
    return whole and not scenario.changes and not scenario.cluster.planner.enabled


def _nested(name: str, value: object) -> dict[str, Any]:
    nested = parse_assignment(f"{name}=0")
    inner = nested
    *outer, last = (part.strip() for part in name.split("."))
    for part in outer:
        inner = inner[part]
    inner[last] = value
    return nested


def _parts(name: str, axis: Axis, part: object) -> Iterator[Label]:
    if isinstance(part, str):
        for word in _OUTSIDE_PARENTHESES.split(part):
            word = word.strip()  # noqa: PLW2901
            if axis.kind is str:
                if not word:
                    raise ConfigError(f"{name}: {part!r} has an empty value", param=name)
                yield word
            else:
                yield from _numbers(name, axis, word)
    elif axis.kind is str or isinstance(part, bool) or not isinstance(part, int | float):
        raise ConfigError(f"{name}: {part!r} is not {'text' if axis.kind is str else 'a number'}", param=name)
    else:
        yield _number(name, axis, part)


def _numbers(name: str, axis: Axis, word: str) -> Iterator[Label]:
    try:
        bounds = [float(bound) for bound in word.split(":")]
    except ValueError as error:
        raise ConfigError(f"{name}: {word!r} is neither a number nor LOW:HIGH:STEP", param=name) from error
    if len(bounds) == 1:
        yield _number(name, axis, bounds[0])
        return
    if len(bounds) != 3 or not all(map(math.isfinite, bounds)):
        raise ConfigError(f"{name}: {word!r} is neither a number nor LOW:HIGH:STEP", param=name)
    low, high, step = bounds
    if not (low <= high and step > 0.0) or (high - low) / step > MAX_CASES:
        raise ConfigError(f"{name}: {word!r} has no values, or too many", param=name)
    for number in range(int((high - low) / step * _SPACED) + 1):
        yield _number(name, axis, round(low + number * step, 9))


def _number(name: str, axis: Axis, value: float) -> Label:
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, but is {value}", param=name)
    if axis.kind is int:
        if value != int(value):
            raise ConfigError(f"{name} must be a whole number, but is {value:g}", param=name)
        if abs(value) >= _EXACT:
            raise ConfigError(f"{name} must be below {_EXACT}, but is {value:g}", param=name)
        return int(value)
    return float(value)


def _targets(word: str) -> tuple[float, float]:
    try:
        ttft_s, tpot_s = (float(part) for part in word.split(":"))
    except ValueError as error:
        raise ConfigError(f"slo: {word!r} is not of the form TTFT:TPOT, in seconds", param="slo") from error
    return ttft_s, tpot_s
