"""`python -m experiments.transfer_bench`: KV hand-offs between two processes, side by side with a plain socket.

A row is a whole hand-off through two real `TransferService` processes: reserve, stream, verify, commit. In turns with
it, over the same link, a plain blocking socket moves as many bytes in the same pieces and messages. Both stride through
pools of the same size on both sides, so that each byte comes out of memory and goes into memory. CPU is that of the two
processes, all threads. `foreign` is the CPU that everything else took meanwhile; a disturbed hand-off is repeated, and
the least disturbed ones are kept.

Other systems are optional: `--mooncake PYTHON` (an interpreter with `mooncake-transfer-engine-non-cuda`), `--vllm
EXECUTABLE` (its NixlConnector between two CPU servers). They neither verify nor authenticate what arrives.

Links are network namespaces and need root or unprivileged user namespaces. Under ten minutes on two quiet cores:

    python -m experiments.transfer_bench --seconds 570
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path

from experiments.load.command_line import end
from experiments.load.machine import describe_machine
from experiments.network.lan import FRAME_SHARE, Lan, LanError, missing, reexec_as_own_root
from experiments.transfer_bench.bench import Bench, Place
from experiments.transfer_bench.certificates import certificates
from experiments.transfer_bench.chapters import (
    MEMORY,
    POOL_MIB,
    SLOW_POOL_MIB,
    Plan,
    estimates,
    hand_offs,
    mooncake,
    nixl_lists,
    service,
)
from experiments.transfer_bench.end import Shape
from experiments.transfer_bench.hiding import Model, prefills
from experiments.transfer_bench.pair import Kind
from experiments.transfer_bench.report import Report
from experiments.transfer_bench.vllm_pair import Vllm, vllm_connector

CHAPTERS = ("lan1000", "lan100", "loopback", "host", "prefill", "estimates", "lan5000", "vllm")
GIVER, TAKER = "giver", "taker"
SMOLLM = Shape(num_layers=30, num_blocks=1024, block_bytes=24576)
ALL_SIZES = ((16, 3), (64, 3), (256, 3), (1024, 2))
SOME_SIZES = ((16, 3), (256, 3))


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.transfer_bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", default=",".join(CHAPTERS), help="which of " + ", ".join(CHAPTERS))
    parser.add_argument("--seconds", type=float, default=570.0, help="time in all; rows that do not fit are left out")
    parser.add_argument("--only", default="", help="comma-separated names of transports: tcp, ucx, nixl, cma, tls")
    parser.add_argument("--max-mib", type=int, default=1024, help="largest hand-off and pool")
    parser.add_argument("--model", default="smollm2-135m", help="of the prefill rows; it has to have this one's shape")
    parser.add_argument("--mooncake", type=Path, help="a Python that has Mooncake's engine")
    parser.add_argument("--vllm", type=Path, help="the vllm executable of its own environment")
    parser.add_argument("--vllm-model", type=Path, help="directory of the model that vLLM serves")
    parser.add_argument("--vllm-preload", default="", help="LD_PRELOAD that vLLM recommends (tcmalloc, libiomp5)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/transfer_bench"), help="where results go (default %(default)s)"
    )
    return parser.parse_args(argv)


class Run:
    """One run over the chosen chapters."""

    def __init__(self, options: argparse.Namespace, bench: Bench, tls: list[str] | None) -> None:
        self.options = options
        self.bench = bench
        self.tls = tls
        self.wanted = [name for name in options.only.split(",") if name]
        self.pool_mib = min(POOL_MIB, options.max_mib)

    def kinds(self, *names: str) -> list[Kind]:
        """Our own transports by name, as far as they are wanted."""
        found = {
            "tcp": service("tcp"), "ucx": service("ucx"), "nixl": service("nixl"), "cma": service("cma"),
            "nixl-shm": service("nixl", "shm", "nixl over CMA"),
        }  # fmt: skip
        if self.tls is not None:
            tls = service("tcp", name="tcp with TLS")
            tls.options["tls"] = self.tls
            found["tls"] = tls
            found["socket-tls"] = Kind("socket with TLS", "socket_end", {"tls": self.tls})
        chosen = [name for name in names if not self.wanted or name.split("-")[-1] in self.wanted]
        return [found[name] for name in chosen if name in found]

    def others(self) -> list[Kind]:
        """Other systems that are there."""
        if self.wanted:
            return []
        found = [nixl_lists("WRITE"), nixl_lists("READ")]
        if self.options.mooncake is None:
            self.bench.report.note("Mooncake: not measured, --mooncake was not given")
        else:
            found.append(mooncake(self.options.mooncake))
        return found

    def sizes(self, *sizes: tuple[int, int]) -> list[tuple[int, int]]:
        """As far as they are wanted."""
        return [size for size in sizes if size[0] <= self.options.max_mib]

    def host(self) -> None:
        """Both ends on one host, through memory."""
        kinds = [*self.kinds("cma", "nixl-shm"), *([] if self.wanted else [MEMORY])]
        hand_offs(self.bench, Place("same host"), [Plan(k, self.sizes(*ALL_SIZES)) for k in kinds], self.pool_mib)

    def loopback(self) -> None:
        """Both ends on one host, through its loopback interface."""
        plans = [Plan(kind, self.sizes(*ALL_SIZES), scattered=kind.name == "tcp") for kind in self.kinds("tcp")]
        plans += [Plan(kind, self.sizes(*ALL_SIZES)) for kind in self.kinds("ucx", "nixl")]
        plans += [Plan(kind, self.sizes(*SOME_SIZES)) for kind in self.kinds("tls", "socket-tls")]
        plans += [Plan(kind, self.sizes(*SOME_SIZES)) for kind in self.others()]
        hand_offs(self.bench, Place("loopback"), plans, self.pool_mib)

    def lan(self, mbit: float) -> None:
        """Two hosts with a link of this rate (0: as fast as the cores allow)."""
        with Lan([GIVER, TAKER]) as lan:
            rate = mbit * 1e6 / 8
            lan.shape(GIVER, rate or None)
            place = Place(
                f"{mbit:g} Mbit/s" if mbit else "unshaped link",
                (lan.hosts[GIVER], lan.hosts[TAKER]),
                rate * FRAME_SHARE if rate else None,
            )
            if mbit == 100:
                plans = [Plan(kind, self.sizes((16, 1), (64, 1))) for kind in self.kinds("tcp")]
                plans += [Plan(kind, self.sizes((16, 1))) for kind in self.kinds("ucx", "nixl", "tls")]
                plans += [Plan(kind, self.sizes((16, 1))) for kind in self.others() if "READ" not in kind.name]
            elif mbit == 1000:
                plans = [Plan(kind, self.sizes((16, 2), (256, 1), (1024, 1))) for kind in self.kinds("tcp")]
                plans += [Plan(kind, self.sizes((16, 2), (256, 1))) for kind in self.kinds("ucx", "nixl", "tls")]
                plans += [Plan(kind, self.sizes((256, 1))) for kind in self.others()]
            else:
                plans = [Plan(kind, self.sizes((64, 3), (1024, 2))) for kind in self.kinds("tcp")]
            hand_offs(self.bench, place, plans, self.pool_mib if mbit != 100 else min(self.pool_mib, SLOW_POOL_MIB))

    def lan5000(self) -> None:
        """The edge of what the cores can do, and the ceiling: the same link without any shaping."""
        self.lan(5000)
        self.lan(0)

    def estimates(self) -> None:
        """How a link is measured, at two rates, and when its rate changes."""
        with Lan([GIVER, TAKER]) as lan:
            for rates in ((1000.0, 100.0), (100.0, 1000.0)):
                estimates(self.bench, lan, (GIVER, TAKER), rates)

    def prefill(self) -> None:
        """Compute and transfer at once."""
        one = Model(self.options.model, SMOLLM, threads=1)
        two = Model(self.options.model, SMOLLM, threads=2)
        with Lan([GIVER, TAKER]) as lan:
            for mbit, models in ((1000, (one, two)), (100, (one,)), (5000, (one,))):
                rate = mbit * 1e6 / 8
                lan.shape(GIVER, rate)
                place = Place(f"{mbit} Mbit/s", (lan.hosts[GIVER], lan.hosts[TAKER]), rate * FRAME_SHARE)
                for model in models:
                    prefills(self.bench, place, "tcp", model, repeats=3)
        prefills(self.bench, Place("same host, cma"), "cma", one, repeats=3)

    def vllm(self) -> None:
        """vLLM's connector."""
        if self.options.vllm is None or self.options.vllm_model is None:
            self.bench.report.note("vLLM: not measured, --vllm and --vllm-model were not given")
            return
        vllm_connector(self.bench, Vllm(self.options.vllm, self.options.vllm_model, self.options.vllm_preload))

    def chapter(self, name: str) -> None:
        """One chapter by its name."""
        if name in ("lan100", "lan1000"):
            self.lan(float(name.removeprefix("lan")))
        else:
            {"host": self.host, "loopback": self.loopback, "prefill": self.prefill, "estimates": self.estimates,
             "lan5000": self.lan5000, "vllm": self.vllm}[name]()  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the chosen chapters, print and save the tables."""
    options = parse(argv)
    names = options.rows.split(",")
    unknown = set(names) - set(CHAPTERS)
    if unknown:
        raise SystemExit(f"--rows: {', '.join(sorted(unknown))} is none of {', '.join(CHAPTERS)}")
    try:
        reexec_as_own_root([sys.executable, "-m", "experiments.transfer_bench", *argv])
    except LanError as error:
        print(f"links are left out: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    report = Report([f"`python -m experiments.transfer_bench {shlex.join(argv)}`", "", describe_machine()])
    no_lan = missing()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(report, options.out, began + options.seconds)
        run = Run(options, bench, certificates(Path(folder)))
        for name in names:
            if no_lan is not None and name not in ("loopback", "host", "vllm"):
                report.note(f"{name}: left out, {no_lan}")
                continue
            run.chapter(name)
            report.save(options.out)
    report.note(f"the run took {time.monotonic() - began:.0f} s")
    report.save(options.out)
    print(report.markdown())
    return 0


if __name__ == "__main__":
    end("transfer_bench", lambda: main(sys.argv[1:]))
