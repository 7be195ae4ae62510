"""Two API servers for one suite: the everyday fake, and a real kube-apiserver on etcd in the slow lane.

The real one is built once by `tests/k8s/real/build_apiserver.sh` into a cache folder outside the clone; where it is
not, its tests are skipped and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "tests" / "k8s" / "real"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phaseserve" / "apiserver-1.20.2"
TOKENS = {"admin-token": "admin", "router-token": "router"}
START_S = 60.0


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Admin:
    """An administrator's view of one namespace, as plain HTTP. Paths begin with `api/v1` or `apis/GROUP/VERSION`."""

    def __init__(self, url: str, namespace: str) -> None:
        headers = {"Authorization": "Bearer admin-token"}
        self.http = httpx.Client(base_url=url, headers=headers, verify=False, timeout=20)
        self.namespace = namespace

    def path(self, base: str, name: str = "", namespace: str | None = None) -> str:
        """`apis/apps/v1/statefulsets` and a name (with a subresource) in the namespace."""
        group, _, plural = base.rpartition("/")
        parts = [group, "namespaces", self.namespace if namespace is None else namespace, plural]
        return "/" + "/".join([*parts, *filter(None, [name])])

    def answer(self, method: str, base: str, name: str = "", body: Any = None, **query: Any) -> httpx.Response:
        kind = {"PATCH": "application/merge-patch+json"}.get(method, "application/json")
        kind = query.pop("content_type", kind)
        content = None if body is None else json.dumps(body)
        return self.http.request(
            method, self.path(base, name), params=query, content=content, headers={"Content-Type": kind}
        )

    def do(self, method: str, base: str, name: str = "", body: Any = None, **query: Any) -> dict[str, Any]:
        answer = self.answer(method, base, name, body, **query)
        assert answer.is_success, answer.text
        result: dict[str, Any] = answer.json()
        return result


class ApiServer(ABC):
    """One API server process. `kill` and `start` keep its objects; `fault` is for the fake alone."""

    real = False
    url = ""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def fault(self, order: str) -> None:
        """As in `tests.k8s.apiserver.faults`."""
        httpx.post(f"{self.url}/_fake/{order}", timeout=10).raise_for_status()

    def num_requests(self) -> int:
        count: int = httpx.get(f"{self.url}/_fake/requests", timeout=10).json()["count"]
        return count

    def requests(self) -> list[tuple[str, str]]:
        return [tuple(entry) for entry in httpx.get(f"{self.url}/_fake/requests", timeout=10).json()["last"]]

    def kubeconfig(self, folder: Path, namespace: str, token: str = "admin-token") -> Path:
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        document = {
            "current-context": "test",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        }
        path = folder / f"kubeconfig-{uuid.uuid4().hex[:6]}"
        path.write_text(json.dumps(document))
        return path


class FakeServer(ApiServer):
    def __init__(self, folder: Path) -> None:
        self._journal = folder / "journal"
        self._port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = ["--port", str(self._port), "--journal", str(self._journal), "--bookmark-s", "0.5"]
        words += [word for token, user in TOKENS.items() for word in ("--token", f"{token}={user}")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.k8s.apiserver", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("READY")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    stop = kill


class RealServer(ApiServer):
    """etcd and kube-apiserver on loopback."""

    real = True

    def __init__(self, folder: Path, etcd: str) -> None:
        self._folder, self._etcd_program = folder, etcd
        self._api_port, self._etcd_port, self._peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._api_port}"
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=folder, check=True, capture_output=True)
        make_public = ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"]
        subprocess.run(make_public, cwd=folder, check=True, capture_output=True)
        rows = ["admin-token,admin,admin,system:masters", "router-token,router,router,"]
        (folder / "tokens.csv").write_text("\n".join(rows) + "\n")

    def start(self) -> None:
        if self._etcd is None:
            self._etcd = self._run("etcd.log", self._etcd_program, *self._etcd_words())
        self._api = self._run("apiserver.log", str(CACHE / "bin" / "kube-apiserver"), *self._api_words())
        deadline = time.monotonic() + START_S
        while True:
            assert self._api.poll() is None, (self._folder / "apiserver.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "kube-apiserver is not ready"
            with contextlib.suppress(httpx.TransportError):
                headers = {"Authorization": "Bearer admin-token"}
                if httpx.get(f"{self.url}/readyz", headers=headers, verify=False, timeout=5).text == "ok":
                    return
            time.sleep(0.1)

    def _etcd_words(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        words = ["--data-dir", "etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        return [*words, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync"]

    def _api_words(self) -> list[str]:
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self._api_port}",
            "--bind-address=127.0.0.1",
            "--cert-dir=pki",
            "--service-cluster-ip-range=10.99.0.0/16",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--disable-admission-plugins=ServiceAccount",
            "--insecure-port=0",
            "--runtime-config=discovery.k8s.io/v1beta1=false",  # a CRD serves discovery.k8s.io/v1 instead
        ]

    def _run(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as out:
            return subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=out)

    def kill(self) -> None:
        assert self._api is not None
        self._api.kill()
        self._api.wait(10)

    def stop(self) -> None:
        for process in (self._api, self._etcd):
            if process is not None:
                process.kill()
                process.wait(10)


def install_slices(admin: Admin) -> None:
    """discovery.k8s.io/v1 on a server that does not have it."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    body = json.loads((REAL / "endpointslice_v1.json").read_text())
    assert admin.http.post(path, json=body).status_code in (201, 409)
    deadline = time.monotonic() + 20
    while admin.http.get("/apis/discovery.k8s.io/v1/endpointslices").status_code != 200:
        assert time.monotonic() < deadline, "the CRD is not served"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def fake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    server = FakeServer(tmp_path_factory.mktemp("fake"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    etcd = shutil.which("etcd")
    if etcd is None or not (CACHE / "bin" / "kube-apiserver").exists():
        pytest.skip(f"NO REAL API SERVER HERE: build it once (10 min) with tests/k8s/real/build_apiserver.sh {CACHE}")
    server = RealServer(tmp_path_factory.mktemp("real"), etcd)
    try:
        server.start()
        admin = Admin(server.url, "default")
        install_slices(admin)
        admin.http.close()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """Each in turn; the fake one without faults before and after."""
    found: ApiServer = request.getfixturevalue(f"{request.param}_server")
    if not found.real:
        found.fault("clear")
    yield found
    if not found.real:
        found.fault("clear")


@pytest.fixture
def fake(fake_server: FakeServer) -> Iterator[FakeServer]:
    """The fake one, for tests that need its faults."""
    fake_server.fault("clear")
    yield fake_server
    fake_server.fault("clear")


def new_namespace(server: ApiServer) -> Admin:
    admin = Admin(server.url, f"t-{uuid.uuid4().hex[:8]}")
    answer = admin.http.post("/api/v1/namespaces", json={"metadata": {"name": admin.namespace}})
    assert answer.status_code == 201, answer.text
    return admin


@pytest.fixture
def admin_of() -> Iterator[Callable[[ApiServer], Admin]]:
    """`admin_of(server)`: an administrator of a new namespace there."""
    made: list[Admin] = []

    def make(server: ApiServer) -> Admin:
        made.append(new_namespace(server))
        return made[-1]

    yield make
    for admin in made:
        admin.http.close()


@pytest.fixture
def a_free_port() -> Callable[[], int]:
    """`a_free_port()`: one that nobody listened on a moment ago."""
    return lambda: free_ports(1)[0]
