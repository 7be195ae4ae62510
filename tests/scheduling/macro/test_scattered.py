"""The ring in no order: an ablation that must stay a function of the time, and keep the turn where it is."""

from __future__ import annotations

from scheduling.macro_instances import MacroInstance


def test_only_those_whose_turn_it_is_not_are_scattered() -> None:
    macro = MacroInstance("m", 0.0, [f"r{number}" for number in range(8)], pointer="r3")
    cyclic = macro.rolling()
    seen = {tuple(macro.rolling(at_s)) for at_s in (0.5, 1.0, 1.5, 2.0)}
    assert cyclic == ["r3", "r4", "r5", "r6", "r7", "r0", "r1", "r2"]
    assert all(order[0] == "r3" and set(order) == set(cyclic) for order in seen)
    assert len(seen) > 1
    assert macro.rolling(0.5) == macro.rolling(0.5)
