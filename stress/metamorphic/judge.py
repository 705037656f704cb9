"""Comparing what a law demands with what was found, and writing down every difference."""

from __future__ import annotations

import math

from tally import Tally

from metamorphic.outcome import Case, Outcome, difference, least_slope


class Judge:
    """Counts checks by law, refusals apart, and notes findings with what reproduces them."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def same(
        self,
        case: Case,
        law: str,
        found: Outcome,
        right: Outcome | None = None,
        *,
        rounding: float = 0.0,
        slopes: bool = True,
        warned_is_fine: bool = False,
        least: float = 0.0,
    ) -> bool:
        """Whether values and gradients are what they were: bit for bit, or up to ``rounding``.

        What is below ``least`` counts as that.
        """
        right = case.expected if right is None else right
        if not right.fine:
            return True  # said once, by :meth:`works`
        if not self.counted(case, law, found):
            return found.raw == ""
        if len(found.values) != len(right.values):
            return self.broken(case, law, f"{len(found.values)} outputs, not {len(right.values)}")
        pairs = [(f"output {i}", a, b, least) for i, (a, b) in enumerate(
            zip(found.values, right.values, strict=True)
        )]  # fmt: skip
        if slopes and right.slopes:
            floor = max(least, least_slope(right))
            for name in right.slopes:
                if name in found.slopes:
                    both = found.slopes[name], right.slopes[name]
                    pairs.append((f"slope in {name}", *both, floor))
        self.tally.count("tensors compared", len(pairs))
        for what, one, other, floor in pairs:
            off = difference(one, other, floor)
            allowed = max(rounding, case.subject.bits)
            if what.startswith("slope") and not off <= allowed:
                allowed = max(allowed, case.truncation)
            if not off <= allowed:
                words = f"{what} differs by {off:.1e}" + ("" if math.isfinite(off) else " (NaN?)")
                if warned_is_fine and (found.warned or right.warned):
                    self.tally.count(f"differences with a warning: {law}")
                    return True
                noted = f", warned {', '.join(found.warned)}" if found.warned else ""
                return self.broken(case, law, f"{words}{noted}")
        return True

    def counted(self, case: Case, law: str, found: Outcome) -> bool:
        """Count a check; whether there is something to compare."""
        self.tally.count("checks")
        self.tally.count(f"checks: {law.split(':')[0]}")
        self.tally.count(f"checks of {case.subject.kind}")
        if found.raw:
            self.tally.finding(f"raw error: {law.split(':')[0]}", f"{law}: {case}: {found.raw}")
            return False
        if found.refusal:
            self.tally.count("refusals")
            self.tally.count(f"refusals: {law.split(':')[0]}")
            self.refused(law, case, found)
            return False
        return True

    def refused(self, law: str, case: Case, found: Outcome) -> None:
        """Hook for those who want to read the words."""

    def broken(self, case: Case, law: str, words: str) -> bool:
        self.tally.finding(f"broken: {law.split(':')[0]}", f"{law}: {case}: {words}")
        return False

    def require(self, case: Case, law: str, holds: bool, words: str) -> bool:
        """A law that is no comparison of outcomes."""
        self.tally.count("checks")
        self.tally.count(f"checks: {law.split(':')[0]}")
        self.tally.count(f"checks of {case.subject.kind}")
        return holds or self.broken(case, law, words)

    def works(self, case: Case) -> bool:
        """Whether the undisturbed computation has a result: a table that only refuses is none."""
        found = case.expected
        if found.fine:
            return True
        self.tally.finding("a subject does not work", f"{case}: {found.refusal or found.raw}")
        return False
