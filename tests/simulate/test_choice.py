"""What a search says of its choice is what is predicted of the plan."""

from __future__ import annotations

import pytest

from tests.benchmarks.objective import CASES, CLOSE, Case, figures


@pytest.mark.parametrize("case", [case for case in CASES if case.is_quick], ids=str)
def test_the_objective_is_what_is_predicted(case: Case) -> None:
    row = figures(case)
    assert row["ratio"] == pytest.approx(1, abs=CLOSE)
    # Gradients are added up under compute: the sum of both is far above.
    assert not case.trains or row["added_up_s"] > 1.1 * row["predicted_s"]
