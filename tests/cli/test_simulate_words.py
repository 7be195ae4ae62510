"""What `phaseserve simulate` tells: what is run, what words mean, and nothing of what did not happen."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cli.main import main
from cli.usual_request import usual_request
from contracts.errors import ConfigError
from simulator.lengths import Constant, Empirical, Uniform
from simulator.traces import Trace
from simulator.workload import Workload

NO_ROOM = ["--model", "llama-30b", "--hardware", "rtx-5090", "--tp", "4"]
QUICK = ["simulate", "--duration", "2"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*QUICK, *words]) == 0
    return capsys.readouterr().out


def test_a_fleet_without_room_for_the_usual_request_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *NO_ROOM, "--layout", "phased"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "are 2392 tokens, a replica takes 2048, the context of its model" in told.err
    assert told.err.count("\n") == 1
    assert "attained" in said(capsys, *NO_ROOM, "--layout", "phased", "--set", "simulate.workload.max_tokens=512")
    small_kv = "[[simulate.fleet]]\nrole = 'mixed'\nnum_blocks = 9\ncost = {kind = 'fitted', a0 = 0.01, a1 = 1e-4}"
    (tmp_path / "small.toml").write_text(small_kv)
    assert main([*QUICK, "--config", str(tmp_path / "small.toml"), "--data", "alpaca"]) == 2
    assert "a replica takes 145, all that its KV has room for" in capsys.readouterr().err


def test_the_usual_request_is_that_of_distributions_and_of_traces(tmp_path: Path) -> None:
    drawn = Workload(prompt=Uniform(low=10, high=30), output=Empirical(values=(5, 15)), max_prompt=15)
    assert msgspec.structs.astuple(usual_request(drawn)) == (15.0, 10.0, 15.0)
    assert msgspec.structs.astuple(usual_request(Workload(prompt=Constant(tokens=7), max_tokens=9))) == (7.0, 9.0, 9.0)
    path = tmp_path / "trace.csv"
    lines = (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:01.0,100,5",
        "2023-11-16 18:17:02.0,300,7",
        "",
    )
    path.write_text("\n".join((*lines, "")))
    recorded = Workload(trace=Trace(path=str(path), repeat=True))
    assert msgspec.structs.astuple(usual_request(recorded)) == (200.0, 6.0, 6.0)
    with pytest.raises(ConfigError):
        usual_request(Workload(trace=Trace(path=str(tmp_path / "none.csv"))))


def test_where_nothing_was_answered_there_are_no_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    dead = 'simulate.changes=[{kind = "kill", at_s = 0.5, replica_id = "alternating-0"}]'
    table = said(capsys, "--alternating", "1", "--set", dead)
    assert ", 0 were answered" in table
    assert " with 503" in table
    assert ", such as: no live replica" in table
    for word in ("TTFT  ", "switch wait", "predictions", "at least", "stretch"):
        assert word not in table


def test_the_table_says_what_was_run_and_what_its_words_mean(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "qwen3-8b", "--hardware", "l20", "--layout", "1:1", "--link-rate", "25", "--slo-ttft-s", "2"]
    table = said(capsys, *words, "--data", "alpaca").splitlines()
    assert table[0] == "Qwen3-8B on L20, TP 1: 1 prefill, 1 decode; links of 25 Gbit/s"
    assert table[1].startswith("alpaca, prompts of 21 tokens and answers of 164 in the mean; targets: TTFT 2 s, TPOT")
    text = "\n".join(table)
    assert "Switch wait: from a request's first token to its first decode step." in text
    assert "of requests within both targets (TTFT 2 s, TPOT 100 ms)" in text
    assert "s until the last answer" in text
    assert said(capsys, "--mixed", "1").startswith("CodeLlama2-34B on L20, TP 4: 1 mixed; links of 10 Gbit/s\nsharegpt")


def test_a_ratio_alone_says_how_many_replicas_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def roles(*words: str) -> list[str]:
        return [replica["role"] for replica in json.loads(said(capsys, *words, "--json", "-"))["replicas"]]

    assert roles("--layout", "1:3") == ["prefill", *["decode"] * 3]
    assert roles("--layout", "phased") == ["alternating"] * 2
    fleet = "[[simulate.fleet]]\nrole = 'mixed'\ncount = 4\ncost = {kind = 'fitted', a0 = 0.01, a1 = 1e-4}"
    (tmp_path / "four.toml").write_text(fleet)
    assert roles("--layout", "1:1", "--config", str(tmp_path / "four.toml")) == ["prefill"] * 2 + ["decode"] * 2
    assert main([*QUICK, "--replicas", "3", "--policy", "min"]) == 2
    assert "--layout min" in capsys.readouterr().err
