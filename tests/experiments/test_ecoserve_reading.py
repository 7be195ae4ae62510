"""What EcoServe's tables are said to say: computed, by one rule, of whatever rows there are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from contracts.errors import ConfigError
from experiments.ecoserve import versions
from experiments.ecoserve.comparison import Bound, Figure, Verdict, change_of, gains
from experiments.ecoserve.reading import reading
from experiments.ecoserve.scan import Found
from experiments.ecoserve.seen import Mitosis, Seen
from experiments.ecoserve.setups import setup
from experiments.ecoserve.systems import ARTIFACT, AUTO, OURS, SARATHI, VLLM
from experiments.ecoserve.versions import chosen, stored
from experiments.load.document import Document
from simulator.grid import Row
from simulator.grid.case import code_version


def _holds(system: str, rate: float, *, further: bool = False) -> Found:
    """A goodput of that rate at every quantile, or at least that."""
    points = ((rate, 1.0, 1.0),) if further else ((rate, 1.0, 1.0), (rate * 1.0001, 0.0, 0.0))
    return Found(system=system, rule="min", points=points)


def _text(seen: Seen) -> str:
    return " ".join(" ".join(reading(seen)).split())


@pytest.mark.parametrize(
    ("value", "bound", "printed", "neutral", "verdict"),
    [
        (1.8, Bound.EXACT, 2.0, 1.0, Verdict.AGREES),
        (1.2, Bound.EXACT, 2.0, 1.0, Verdict.SIGN),
        (0.9, Bound.EXACT, 2.0, 1.0, Verdict.NOT),
        (0.9, Bound.LEAST, 2.0, 1.0, Verdict.UNDECIDED),
        (1.2, Bound.LEAST, 2.0, 1.0, Verdict.SIGN),
        (0.9, Bound.MOST, 2.0, 1.0, Verdict.NOT),
        (3.0, Bound.MOST, 2.0, 1.0, Verdict.UNDECIDED),
        (2.0, Bound.UNKNOWN, 2.0, 1.0, Verdict.UNDECIDED),
        (-0.5, Bound.EXACT, -0.57, 0.0, Verdict.AGREES),
        (-0.1, Bound.EXACT, -0.57, 0.0, Verdict.SIGN),
        (0.1, Bound.EXACT, -0.57, 0.0, Verdict.NOT),
    ],
)
def test_one_rule_judges_all(value: float, bound: Bound, printed: float, neutral: float, verdict: Verdict) -> None:
    assert Figure(value=value, bound=bound).judge(printed, neutral) is verdict


def test_a_scan_that_ended_makes_a_gain_a_bound() -> None:
    ours, theirs = _holds(OURS, 4.0, further=True), _holds(VLLM, 2.0)
    rows = [{OURS: ours, VLLM: theirs}, {OURS: _holds(OURS, 4.0), VLLM: _holds(VLLM, 4.0)}, {OURS: ours}]
    found = gains(rows, OURS, VLLM, 0.9, 2)
    assert found is not None
    assert (found.bound, found.count) == (Bound.LEAST, 2)
    assert found.value == pytest.approx(1.5, rel=1e-3)
    lost = change_of(_holds(OURS, 4.0), Found(system=OURS, rule="min", points=((1.0, 0.0, 0.0),)), 0.9, 2)
    assert lost == Figure(value=-1.0)
    assert gains([], OURS, VLLM, 0.9, 2) is None


def test_every_part_has_its_sentence_and_missing_ones_none() -> None:
    assert reading(Seen()) == ["Nothing to compare yet."]
    one = setup("L20", "codellama2-34b", "ShareGPT", 4)
    seen = Seen()
    seen.goodput[one] = {ARTIFACT: _holds(ARTIFACT, 25.0), VLLM: _holds(VLLM, 20.0), SARATHI: _holds(SARATHI, 30.0)}
    text = _text(seen)
    assert "L20 and A800 (1 set-up): the artifact 1.25 (same sign only), ours has no goodput; the paper 2.01." in text
    assert "Over prefill priority (vLLM 0.7), ShareGPT (1 set-up): the artifact 1.25 (agrees)" in text
    assert "Over chunks (Sarathi), best size, ShareGPT (1 set-up): the artifact 0.83 (**does not agree**)" in text
    assert "static P/D" not in text
    assert "H100" not in text
    assert "Of 4 figures and pictures of the paper" in text
    seen.scaling = {(ARTIFACT, 1): _holds(ARTIFACT, 1.0), (ARTIFACT, 4): _holds(ARTIFACT, 4.6)}
    seen.tightening = {VLLM: (_holds(VLLM, 10.0), _holds(VLLM, 4.0))}
    seen.bursts = {ARTIFACT: (_holds(ARTIFACT, 10.0), _holds(ARTIFACT, 11.0))}
    seen.ablations = {
        ("L20", "ours, ring"): _holds("ours, ring", 5.0),
        ("L20", "ours, no order"): _holds("ours, no order", 5.0),
    }
    seen.hybrid = {("roofline", OURS): _holds(OURS, 6.0), ("roofline", SARATHI): _holds(SARATHI, 5.0)}
    seen.mitosis = Mitosis(sizes=[[11], [6, 6]], lowest=0.98, attained=0.99)
    seen.goodput[one][AUTO] = _holds(AUTO, 31.0)
    text = _text(seen)
    assert "4 replicas 4.60 (the paper's EcoServe 4.96: agrees)" in text
    assert "prefill priority (vLLM 0.7): -60 %, the paper -60.0 %: agrees" in text
    assert "Bursts, CV 1.2 to 2.0, EcoServe, artifact: +10 %, the paper -17.3 %: **does not agree**" in text
    assert "5 against 5 req/s at P90: not lower, **does not agree**" in text
    assert "splits at replica 12 into 6+6 (the paper: 12): agrees. The lowest window has 98.0 %" in text
    assert "1.20 times" in text
    assert "ours, auto beside the best of the published systems" in text
    assert "ahead in 1, level in 0, behind in 0" in text


def test_what_was_not_run_stands_in_groups_and_an_empty_table_not_at_all(tmp_path: Path) -> None:
    document = Document(tmp_path / "RESULT.md", "T", "c", "abc (code 123)")
    document.head("Empty", "| a |", "| --- |")
    document.head("Full", "| b |", "| --- |")
    document.section("Full", "| 1 |")
    for name in ("x", "y"):
        document.plan(f"Empty, {name}", name, "Empty")
    document.plan("part", "part `z`")
    document.write()
    text = (tmp_path / "RESULT.md").read_text()
    assert "rows of commit abc (code 123), shown by" in text
    assert "## Full\n\n| b |\n| --- |\n| 1 |\n" in text
    assert "## Empty" not in text
    assert "## Not run\n\n- Empty: x; y\n- part `z`\n" in text


def test_stored_rows_are_shown_of_the_version_that_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    head = b'{"grid":"g","code":"aaaabbbbcccc"}\n'
    rows = [msgspec.json.encode(Row(key=f"k-{code}", labels={}, figures={})) for code in ("aaaabbbbcccc", "0123")]
    path.write_bytes(head + rows[0] + b'\n{"key":"torn')
    assert list(stored(path)) == ["k-aaaabbbbcccc"]
    assert chosen(path) == chosen(path, "aaaa") == "aaaabbbbcccc"
    monkeypatch.setattr(versions, "FAR", 1)
    assert versions.commit_of("aaaabbbbcccc") == ""
    path.write_bytes(head + b"\n".join(rows) + b"\n")
    with pytest.raises(ConfigError, match="say which with --version"):
        chosen(path)
    with pytest.raises(ConfigError, match="no row of version 99"):
        chosen(path, "99")
    path.write_bytes(
        head + msgspec.json.encode(Row(key=f"k-{code_version()}", labels={}, figures={})) + b"\n" + rows[0]
    )
    assert chosen(path) == code_version()
