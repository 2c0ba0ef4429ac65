"""What a load's figures count: each request by the share of its life in the counted time."""

from __future__ import annotations

import pytest
from _grpc_load import Answer, Figures, quantile


def test_a_request_counts_by_the_share_of_its_life_that_was_counted() -> None:
    answers = [
        Answer(started=0, first=1, ended=20, tokens=100),  # half of it inside
        Answer(started=12, first=13, ended=16, tokens=8),
        Answer(started=18, first=19, ended=22, tokens=40),  # half of it inside
    ]
    figures = Figures(answers, begin=10, end=20)
    assert figures.requests_per_second == pytest.approx((0.5 + 1 + 0.5) / 10)
    assert figures.tokens_per_second == pytest.approx((50 + 8 + 20) / 10)


@pytest.mark.parametrize("begin", [0.0, 3.0, 7.5])
def test_requests_in_step_give_the_same_pace_wherever_the_counted_time_begins(begin: float) -> None:
    """64 streams whose requests of 128 tokens all take 4 s, one after another."""
    answers = [Answer(t, t + 1, t + 4, 128) for t in range(0, 24, 4) for _ in range(64)]
    counted = [a for a in answers if a.ended > begin and a.started < begin + 10]
    assert Figures(counted, begin, begin + 10).tokens_per_second == pytest.approx(64 * 128 / 4)


def test_quantiles_are_nearest_ranks() -> None:
    values = list(range(100, 0, -1))
    assert [quantile(values, share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert quantile([7.0], 0.5) == 7.0
