"""Replicas by a watched file, links that come and go with what is found, and the settings of both."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from contracts.errors import ConfigError
from router.config import RouterConfig
from router.file_discovery import FileDiscovery, read_endpoints
from router.membership import Links

A, B, C = "tcp://10.0.0.1:5", "tcp://10.0.0.2:5", "tcp://[fd00::3]:5"


class Heard:
    """A fleet side that keeps what was found."""

    def __init__(self) -> None:
        self.found_lists: list[tuple[str, ...]] = []

    def found(self, endpoints: Any) -> None:
        self.found_lists.append(tuple(endpoints))

    async def until(self, num: int) -> None:
        async with asyncio.timeout(5):
            while len(self.found_lists) < num:  # noqa: ASYNC110  (read on another thread)
                await asyncio.sleep(0.005)


def test_a_file_names_one_endpoint_a_line(tmp_path: Path) -> None:
    file = tmp_path / "replicas"
    file.write_text(f"# the first rack\n{A}\n\n  {B}  # new\n{C}\n")
    assert read_endpoints(file) == (A, B, C)
    file.write_text("")
    assert read_endpoints(file) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"http://10.0.0.1:5\n", "not of the form"),
        (b"tcp://10.0.0.1\n", "not of the form"),
        (f"{A}\n{A}\n".encode(), "listed twice"),
        (b"\xff\xfe", "is no text"),
        (b"#" * ((1 << 20) + 1), "larger than"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: bytes | None, told: str) -> None:
    file = tmp_path / "replicas"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError) as refused:
        read_endpoints(file)
    assert told in refused.value.message
    assert str(file) in refused.value.message


async def test_a_changed_file_is_followed_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file, heard = tmp_path / "replicas", Heard()
    file.write_text(f"{A}\n{B}\n")
    discovery = FileDiscovery(file, every_s=0.01)
    task = asyncio.create_task(discovery.run(heard))  # type: ignore[arg-type]  # only what a file needs
    await heard.until(1)
    # 1. half written, then gone: what was known is kept, and it is said why
    file.write_text("tcp://10.0")
    while discovery.trouble() is None:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    file.unlink()
    while "No such file" not in (discovery.trouble() or ""):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    # 2. replaced as a whole, as a mounted ConfigMap is
    new = tmp_path / "new"
    new.write_text(f"{B}\n{C}\n")
    new.rename(file)
    await heard.until(2)
    assert heard.found_lists == [(A, B), (B, C)]
    assert discovery.trouble() is None
    figures = discovery.figures()
    assert (figures["endpoints"], figures["changes_total"]) == (2, 2)
    task.cancel()
    await asyncio.wait([task])


class QuietLink:
    """Stands for a link: joined when the test says so, and counts how often it runs and ends."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.replica_id: str | None = None
        self.why_not = "not connected yet"
        self.runs = self.ends = 0

    async def run(self) -> None:
        self.runs += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ends += 1


async def test_an_address_that_is_no_longer_found_is_left_when_its_connection_is(monkeypatch: Any) -> None:
    made: dict[str, QuietLink] = {}

    def connect(self: Links, endpoint: str) -> QuietLink:
        made[endpoint] = QuietLink(endpoint)
        return made[endpoint]

    monkeypatch.setattr(Links, "_connect", connect)
    links = Links(RouterConfig(model="m", replicas=(A,)), None, None)  # type: ignore[arg-type]  # links are quiet here
    links.found([A, B])
    task = asyncio.create_task(links.run())
    await asyncio.sleep(0.01)
    made[A].replica_id = "a"
    # 1. gone from what is found: B, that nobody answers at, is given up; A is connected and stays
    links.found([C])
    await asyncio.sleep(0.01)
    assert {link.endpoint for link in links} == {A, C}
    assert (made[B].ends, made[A].ends) == (1, 0)
    assert not links.is_wanted(made[A])  # type: ignore[arg-type]
    # 2. its connection ends: it is not connected to anew
    made[A].replica_id = None
    links.lost()
    await asyncio.sleep(0.01)
    assert [link.endpoint for link in links] == [C]
    assert made[A].ends == 1
    # 3. found again
    links.found([A, C])
    await asyncio.sleep(0.01)
    assert [link.endpoint for link in links] == [A, C]
    assert (made[A].runs, made[C].runs, made[C].ends) == (1, 1, 0)
    assert links.missing() == [f"{A}: not connected yet", f"{C}: not connected yet"]
    # 4. found and gone again at once
    links.found([A, C, "tcp://10.0.0.4:5"])
    links.found([A, C])
    await asyncio.sleep(0.01)
    assert [link.endpoint for link in links] == [A, C]
    assert made["tcp://10.0.0.4:5"].runs == 0
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({}, "replicas"),
        ({"replicas": (A,), "discovery": "kubernetes"}, "replicas"),
        ({"discovery": "file"}, "replicas_file"),
        ({"replicas": (A,), "replicas_file": "x"}, "replicas_file"),
        ({"replicas": (A,), "discovery": "dns"}, "discovery"),
        ({"discovery": "kubernetes", "shards": 0}, "shards"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RouterConfig(model="m", **settings)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--discovery", "file", "--replicas-file", "/nowhere/replicas"], "cannot read /nowhere/replicas"),
        (["--discovery", "kubernetes", "--set", "kubernetes.kubeconfig=/nowhere/config"], "no Kubernetes here"),
        (["--discovery", "kubernetes", "--set", "kubernetes.namespaces=x"], "namespaces"),
        (["--discovery", "kubernetes", "--set", "kubernetes.election.retry_s=9"], "three times retry_s"),
    ],
)
def test_a_router_that_could_find_nobody_says_so_and_does_not_start(words: list[str], told: str, capsys: Any) -> None:
    assert main(["router", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_the_extra_a_router_says_what_to_install_and_otherwise_needs_none_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("k8s", "kubernetes")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["router", "--discovery", "kubernetes"]) == 2
    assert "needs the package kubernetes: pip install 'phaseserve[k8s]'" in capsys.readouterr().err
    assert main(["router", "--discovery", "file", "--replicas-file", "/nowhere"]) == 2
    assert "cannot read /nowhere" in capsys.readouterr().err
