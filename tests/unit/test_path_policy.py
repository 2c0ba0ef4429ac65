"""Which path a step takes by what each is predicted to cost, and how predictions learn."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx.paths.costs import CostTable, Prediction, Predictor, SparseCosts
from inferx.paths.policy import PathPolicy
from sparse_paths import make_costs

TABLE = CostTable(
    tokens=[1, 4],
    dense=[10.0, 16.0],
    sparse=[SparseCosts(1, [0.2, 0.6, 1.0], [4.0, 8.0, 12.0]), SparseCosts(4, [0.5], [20.0])],
)


@pytest.mark.parametrize(
    ("tokens", "density", "dense", "sparse"),
    [
        (1, 0.6, 10.0, 8.0),
        (1, 0.4, 10.0, 6.0),
        (1, 0.0, 10.0, 4.0),  # outside of what was measured: its edge
        (2, 0.6, 12.0, 12.0),
        (3, 0.9, 14.0, 11.0 + 2 / 3 * 9.0),
        (4, 0.1, 16.0, 20.0),
        (9, 0.1, 16.0, 20.0),
    ],
)
def test_costs_are_interpolated_between_what_was_measured(tokens, density, dense, sparse):
    assert TABLE.dense_seconds(tokens) == pytest.approx(dense)
    assert TABLE.sparse_seconds(tokens, density) == pytest.approx(sparse)


def prediction(ratio: float) -> Prediction:
    """sparse over dense."""
    return Prediction(1.0, ratio)


def test_sparse_is_taken_below_095_of_dense_and_left_at_dense():
    policy = PathPolicy()
    ratios = (0.96, 0.94, 0.96, 0.99, 1.0, 0.96, 0.94)
    assert [policy.choose(prediction(ratio)) for ratio in ratios] == [
        False, True, True, True, False, False, True,
    ]  # fmt: skip


@given(st.lists(st.floats(0.95, 0.9999), max_size=600))
def test_between_the_two_bounds_the_path_that_stands_stays(ratios):
    for first, stands in ((0.5, True), (1.5, False)):
        policy = PathPolicy()
        assert policy.choose(prediction(first)) is stands
        taken = [policy.choose(prediction(ratio)) for ratio in ratios]
        trials = [step for step, sparse in enumerate(taken, 2) if sparse is not stands]
        assert trials == [step for step in (16, 48, 112, 240, 496) if step <= len(ratios) + 1]


def test_the_other_path_is_tried_now_and_then_and_rarely_where_it_is_far_slower():
    policy = PathPolicy()
    taken = [policy.choose(prediction(1.2)) for _ in range(2100)]
    trials = [step for step, sparse in enumerate(taken, 1) if sparse]
    assert trials == [16, 48, 112, 240, 496, 1008, 1520, 2032]
    policy = PathPolicy()
    taken = [policy.choose(prediction(2.1)) for _ in range(20_000)]
    assert [step for step, sparse in enumerate(taken, 1) if sparse] == [8192, 16_384]
    taken = [policy.choose(prediction(0.1)) for _ in range(100)]
    assert [step for step, sparse in enumerate(taken, 1) if not sparse] == [16, 48]


def test_a_path_that_others_held_up_for_long_is_found_again():
    policy, predictor = PathPolicy(), Predictor(make_costs())

    def taken_in(steps: int, slower: float) -> int:
        num_sparse = 0
        for _ in range(steps):
            predicted = predictor.predict(1, 0.5)
            sparse = policy.choose(predicted)
            predictor.observe(predicted, sparse=sparse, seconds=0.5 * slower if sparse else 1.0)
            num_sparse += sparse
        return num_sparse

    assert taken_in(1000, 1.0) > 990
    assert taken_in(5000, 6.0) < 50
    assert predictor.predict(1, 0.5).sparse > 2
    assert taken_in(10_000, 1.0) > 0
    assert taken_in(1000, 1.0) > 990


def test_predictions_follow_what_steps_take_on_each_path_alone():
    predictor = Predictor(make_costs())
    assert predictor.predict(1, 0.5) == Prediction(1.0, 0.5)
    for _ in range(100):
        predictor.observe(predictor.predict(1, 0.5), sparse=True, seconds=0.75)
    found = predictor.predict(1, 0.5)
    assert found.sparse == pytest.approx(0.75, rel=1e-3)
    assert found.dense == 1.0
    assert predictor.predict(2, 0.5).sparse == pytest.approx(1.5, rel=1e-3)


def test_a_path_that_was_not_measured_for_long_is_believed_sooner():
    predictor = Predictor(make_costs())
    for _ in range(1000):
        predictor.observe(predictor.predict(1, 0.5), sparse=True, seconds=0.5)
    predictor.observe(predictor.predict(1, 0.5), sparse=False, seconds=0.64)
    assert predictor.predict(1, 0.5).dense == pytest.approx(0.8)  # by half, at most
    for _ in range(8):
        predictor.observe(predictor.predict(1, 0.5), sparse=True, seconds=0.5)
    predictor.observe(predictor.predict(1, 0.5), sparse=False, seconds=0.8 * math.exp(0.5))
    assert predictor.predict(1, 0.5).dense == pytest.approx(0.8 * math.exp(0.1))
    predictor.observe(predictor.predict(1, 0.5), sparse=False, seconds=0.8 * math.exp(-0.4))
    assert predictor.predict(1, 0.5).dense == pytest.approx(0.8 * math.exp(0.05))


def test_one_step_that_was_held_up_says_little():
    predictor = Predictor(make_costs())
    predictor.observe(predictor.predict(1, 0.5), sparse=False, seconds=1000.0)
    assert predictor.predict(1, 0.5).dense == pytest.approx(math.exp(0.07))
    predictor.observe(predictor.predict(1, 0.5), sparse=True, seconds=0.0)
    assert predictor.predict(1, 0.5).sparse == 0.5
