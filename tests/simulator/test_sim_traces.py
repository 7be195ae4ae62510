"""Recorded traces: as they are published, with what other programs add, and what is no trace at all."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from contracts.phase import Role
from simulator.goodput import at_rate
from simulator.scenario import Group, Scenario
from simulator.scenarios import L20_34B
from simulator.traces import Trace, read_trace
from simulator.workload import Workload, draw

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LINE = '{"timestamp": 0, "input_length": %s, "output_length": %s, "hash_ids": %s}\n'


def azure(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_azure_trace_is_read_and_played_faster(tmp_path: Path) -> None:
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    path = azure(tmp_path, rows + "2023-11-16 18:17:05.9799600,31,8\n")
    arrivals = list(draw(Workload(trace=Trace(path=str(path), speed=4.0)), random.Random(0), 10.0))
    assert [arrival.at_s for arrival in arrivals] == [10.0, 10.5]
    assert [len(arrival.prompt) for arrival in arrivals] == [4808, 31]
    assert [(arrival.output_tokens, arrival.max_tokens) for arrival in arrivals] == [(10, 16), (8, 16)]


def test_a_part_of_a_trace_begins_at_zero_and_keeps_its_gaps(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * number, "input_length": 10 + number, "output_length": 1} for number in range(5)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    part = list(Trace(path=str(path), skip=2, most=2, speed=2.0).rows())
    assert [(row.at_s, row.prompt_tokens) for row in part] == [(0.0, 12), (0.5, 13)]
    with pytest.raises(ConfigError, match="only 5 requests"):
        next(Trace(path=str(path), skip=5).rows())


def test_a_mooncake_trace_shares_what_its_hashes_share(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": %d, "input_length": 1500, "output_length": 20, "hash_ids": [%s]}\n'
    path.write_text(line % (0, "0, 1, 2") + line % (500, "0, 1, 9"), encoding="utf-8")
    first, second = draw(Workload(trace=Trace(path=str(path))), random.Random(0))
    assert second.at_s == 0.5
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024] != second.prompt[1024]
    assert first.shares_prefix


def test_a_trace_out_of_order_begins_with_its_earliest_request(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "2023-11-16 18:00:09,9,2\n2023-11-16 18:00:04,8,2\n")
    assert [(row.at_s, row.prompt_tokens) for row in read_trace(path)] == [(0.0, 8), (5.0, 9)]
    path.write_text(HEAD + "2023-11-16 18:00:09,7,2\n")
    assert [row.prompt_tokens for row in read_trace(path)] == [7], "a file that changed is read again"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.csv", "TIMESTAMP,ContextTokens\n", "no column GeneratedTokens"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2, column TIMESTAMP: "),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 1}\n', "line 1 has no output_length"),
        ("t.jsonl", "[]\n", "line 1: not an object"),
        ("t.jsonl", "{\n", "line 1"),
        (
            "z.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,-9,2\n",
            "line 2, column ContextTokens: the number of tokens is negative",
        ),
        (
            "z.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,9,2\n2023-11-16 18:00:00+00:00,9,2\n",
            "line 3, column TIMESTAMP: ",
        ),
        ("z.csv", HEAD + "9" * 200_000 + ",9,2\n", "cannot be read"),
        ("z.csv", HEAD + "2023-11-16 18:00:00,999999999999,2\n", "line 2, column ContextTokens: more than"),
        ("z.jsonl", '{"timestamp": NaN, "input_length": 1, "output_length": 1}\n', "line 1, column timestamp: "),
        ("z.jsonl", '{"timestamp": 0, "input_length": Infinity, "output_length": 1}\n', "column input_length: "),
        ("z.csv", HEAD + "2023-11-16 18:00:00,9\n", "line 2 has no GeneratedTokens"),
        ("z.csv", HEAD + "2023-11-16 18:00:00,1,024,9\n", "line 2 has more cells than line 1"),
        ("z.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "more than one column ContextTokens"),
        ("z.jsonl", LINE % ("1.5", "1", "[]"), "column input_length: 1.5 is not a whole number"),
        ("z.jsonl", LINE % ("true", "1", "[]"), "column input_length: True is not a whole number"),
        ("z.jsonl", LINE % ("1024", "1", "[1, 2, 3]"), "column hash_ids: 3 pieces, but 1024 tokens have 2 of 512"),
        ("z.jsonl", LINE % ("1024", "1", '"12"'), "column hash_ids: not a list"),
        ("z.jsonl", LINE % ("1024", "1", "[1.5]"), "column hash_ids: 1.5 is not a whole number"),
        ("z.csv", HEAD + "2023-11-16 18:00:00,9,x\n", "line 2, column GeneratedTokens: "),
        (
            "z.jsonl",
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [null]}\n',
            "line 1, column hash_ids: ",
        ),
    ],
)
def test_a_wrong_trace_is_named_with_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        read_trace(tmp_path / name)


def test_marks_line_ends_and_empty_lines_of_other_programs_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(
        b"\xef\xbb\xbf" + HEAD.replace("\n", "\r\n").encode() + b"\r\n2023-11-16 18:00:09,9,0\r\n"
    )
    (tmp_path / "t.JSONL").write_bytes(b"\xef\xbb\xbf" + (LINE % ("9", "0", "[7]")).encode() + b"\r\n\n")
    for name in ("t.csv", "t.JSONL"):
        assert [(row.prompt_tokens, row.output_tokens) for row in read_trace(tmp_path / name)] == [(9, 1)]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "is not a file"),
        ("pipe", "is not a file"),
        ("a\0b.csv", "null"),
        ("x" * 999, "too long"),
        ("no", "No such"),
    ],
)
def test_what_is_no_file_is_no_trace(path: str, says: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=f"trace .*{says}"):
        read_trace(tmp_path / path)


def test_a_trace_without_a_length_is_neither_repeated_nor_scaled(tmp_path: Path) -> None:
    path = str(azure(tmp_path, HEAD + "2023-11-16 18:00:09,9,2\n" * 3))
    fleet = (Group(role=Role.MIXED, cost=L20_34B),)
    with pytest.raises(ConfigError, match="cannot be repeated"):
        Scenario(fleet=fleet, workload=Workload(trace=Trace(path=path, repeat=True)))
    with pytest.raises(ConfigError, match="no rate to scale"):
        at_rate(Scenario(fleet=fleet, workload=Workload(trace=Trace(path=path))), 4.0)
    path = str(azure(tmp_path, HEAD + "2023-11-16 18:00:09,9,2\n2023-11-16 18:00:10,9,2\n"))
    with pytest.raises(ConfigError, match=r"about 120,000,000 requests: a run has at most"):
        Scenario(fleet=fleet, workload=Workload(trace=Trace(path=path, repeat=True, speed=2e6)))
    with pytest.raises(ConfigError, match=r"to arrive: a run has at most 3\.16"):
        Scenario(fleet=fleet, workload=Workload(trace=Trace(path=path, repeat=True), num_requests=100_000_000))
