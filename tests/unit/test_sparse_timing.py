"""What a decode step costs on each path: measured by turns, on a machine whose pace changes."""

from __future__ import annotations

from typing import cast

import pytest
from inferx.sparse.serving import CalibratedRows
from inferx.sparse.timing import measure_costs


class Rows:
    """A row of 50%, and what the last step read by the threshold in use."""

    targets = (0.5,)

    def __init__(self) -> None:
        self.union_density = 1.0

    def select(self, target: float) -> None:
        self.union_density = 1 - target

    def select_all(self, threshold: float) -> None:
        self.union_density = float(threshold < 0)


class Machine:
    """Sparse steps take 0.2 + what they read, dense ones 1, times the pace of the moment."""

    def __init__(self, rows: Rows, paces: list[float]) -> None:
        self._rows, self._paces, self._steps = rows, paces, 0

    def __call__(self, tokens: int, is_masked: bool) -> float:
        pace = self._paces[self._steps * len(self._paces) // 144 % len(self._paces)]
        self._steps += 1
        return tokens * pace * (0.2 + self._rows.union_density if is_masked else 1.0)


def test_densities_rise_and_every_number_of_tokens_has_its_own() -> None:
    rows = Rows()
    table = measure_costs(Machine(rows, [1.0]), cast(CalibratedRows, rows), 64)
    assert table.tokens == [1, 2, 4]
    assert table.dense == [1.0, 2.0, 4.0]
    assert [costs.densities for costs in table.sparse] == [[0.0, 0.5, 1.0]] * 3
    assert table.sparse[2].seconds == pytest.approx([0.8, 2.8, 4.8])


@pytest.mark.parametrize("paces", [[1, 3, 2], [3, 1, 1], [1, 1, 5], [2, 1, 4]])
def test_a_pace_that_changes_meanwhile_never_makes_the_sparse_path_look_faster(
    paces: list[float],
) -> None:
    rows = Rows()
    table = measure_costs(Machine(rows, paces), cast(CalibratedRows, rows), 1)
    [dense], [costs] = table.dense, table.sparse
    for density, seconds in zip(costs.densities, costs.seconds, strict=True):
        assert seconds / dense >= (0.2 + density) * 0.999


def test_no_more_sequences_are_measured_than_a_step_may_have() -> None:
    rows = Rows()
    table = measure_costs(Machine(rows, [1.0]), cast(CalibratedRows, rows), 3)
    assert table.tokens == [1, 2, 3]
