"""Whether activations are still those of the calibration, and what follows where they are not."""

from __future__ import annotations

import random

import msgspec
import pytest
from inferx.paths.ceiling import CALM, Ceiling
from inferx.paths.drift import WINDOW, DriftMonitor
from sparse_paths import NUM_SITES, make_probe, make_row

ROW = make_row(0.25)
STEADY = ("page-hinkley", "ewma")


def steps_until_drift(rule: str, limit: int = 2000, **distances: float) -> int | None:
    monitor = DriftMonitor(ROW, 2, rule)
    for step in range(1, limit + 1):
        if monitor.update(make_probe(ROW, step, **distances)):
            return step
    return None


@pytest.mark.parametrize("rule", ["page-hinkley", "ewma", "variance"])
def test_what_was_calibrated_is_no_drift(rule):
    draw = random.Random(0)
    monitor = DriftMonitor(ROW, 2, rule)
    assert not any(
        monitor.update(make_probe(ROW, step, share=draw.gauss(0, 1), energy=draw.gauss(0, 1)))
        for step in range(2000)
    )


@pytest.mark.parametrize("distances", [{"share": 2.0}, {"share": -2.0}, {"energy": 2.0}])
def test_a_shift_of_two_deviations_either_way_is_drift_within_a_few_steps(distances):
    # 35 are gathered at 2 - 0.4 a step
    assert steps_until_drift("page-hinkley", **distances) == 22
    # 2 (1 - 0.99^n) > 0.4
    assert steps_until_drift("ewma", **distances) == 23


def test_one_token_counts_for_four_deviations_at_most():
    # 35 are gathered at 4 - 0.4 a step
    assert steps_until_drift("page-hinkley", share=1e6) == 10
    # 4 (1 - 0.99^n) > 0.4
    assert steps_until_drift("ewma", energy=1e6) == 11


@pytest.mark.parametrize("rule", STEADY)
def test_products_that_stay_dense_say_nothing_of_their_layer(rule):
    """Of each layer's two, one is not masked: the other's shift alone is the layer's."""
    half = msgspec.structs.replace(
        ROW,
        share_means=[0.0, 0.25] * (NUM_SITES // 2),
        share_deviations=[0.0, 0.1] * (NUM_SITES // 2),
        energy_means=[0.0, 0.025] * (NUM_SITES // 2),
        energy_deviations=[0.0, 0.01] * (NUM_SITES // 2),
    )
    monitor = DriftMonitor(half, 2, rule)
    probe = make_probe(ROW, share=2.0)
    probe.masked_shares[::2] = probe.masked_energies[::2] = 0.0
    found = [monitor.update(probe) for _ in range(30)]
    assert found.index(True) + 1 == steps_until_drift(rule, share=2.0)


def test_what_never_varied_in_the_calibration_may_vary_a_little():
    steady = msgspec.structs.replace(ROW, share_deviations=[0.0] * NUM_SITES)
    monitor = DriftMonitor(steady, 2, "page-hinkley")
    probe = make_probe(ROW, share=3e-3)  # three times 1e-4: 35 are gathered at 3 - 0.4
    found = [monitor.update(probe) for _ in range(30)]
    assert found.index(True) + 1 == 14


@pytest.mark.parametrize("rule", STEADY)
def test_a_shift_within_the_tolerance_never_is(rule):
    assert steps_until_drift(rule, share=0.39, energy=-0.39) is None


@pytest.mark.parametrize("rule", STEADY)
def test_the_mean_of_several_tokens_varies_less(rule):
    alone, four = (steps_until_drift(rule, share=1.5, num_tokens=n) for n in (1, 4))
    assert alone is not None
    assert four is not None
    assert four < alone


def test_a_quarter_of_the_layers_alone_is_no_drift_and_more_are():
    for num_layers, drifts in ((2, False), (3, True)):
        probe = make_probe(ROW)
        probe.masked_shares[: 2 * num_layers] += 0.4
        monitor = DriftMonitor(ROW, 2, "page-hinkley")
        assert any(monitor.update(probe) for _ in range(500)) is drifts


@pytest.mark.parametrize(("num_layers", "drifts"), [(1, False), (2, True)])
def test_the_moving_average_is_of_all_layers(num_layers, drifts):
    """Of a shift by one deviation in some of eight: the root of 1/8 is below 0.4, of 2/8 above."""
    probe = make_probe(ROW)
    probe.masked_shares[: 2 * num_layers] += 0.1
    monitor = DriftMonitor(ROW, 2, "ewma")
    assert any(monitor.update(probe) for _ in range(500)) is drifts


def test_the_variance_rule_fires_by_swings_and_not_by_shifts_below_030():
    assert steps_until_drift("variance", share=2.9) is None
    monitor = DriftMonitor(ROW, 2, "variance")
    steady, far = make_probe(ROW), make_probe(ROW, share=3.1)
    swings = [monitor.update(probe) for _ in range(WINDOW) for probe in (steady, far)]
    # of two values in equal parts it is a quarter of the squared distance: 0.31^2 / 4
    assert swings.index(True) == WINDOW - 1
    monitor = DriftMonitor(ROW, 2, "variance")
    near = make_probe(ROW, share=3.0)
    assert not any(monitor.update(probe) for _ in range(WINDOW) for probe in (steady, near))
    assert any(monitor.update(probe) for _ in range(WINDOW) for probe in (steady, far))


def test_after_a_drift_a_monitor_starts_anew():
    monitor = DriftMonitor(ROW, 2, "page-hinkley")
    found = [monitor.update(make_probe(ROW, step, share=2.0)) for step in range(66)]
    assert [step for step, drifted in enumerate(found, 1) if drifted] == [22, 44, 66]


# The ceiling


def test_a_drift_takes_the_row_and_sparser_ones_away():
    ceiling = Ceiling(3)
    assert ceiling.at(1) == 2
    assert ceiling.drifted(2, 10)
    assert ceiling.at(11) == 1
    assert not ceiling.drifted(2, 12), "of a step that was launched before"
    assert ceiling.drifted(0, 13)
    assert ceiling.at(14) == -1
    assert not ceiling.broken(15)


def test_after_a_calm_period_rows_come_back_one_by_one():
    ceiling = Ceiling(2)
    assert ceiling.broken(100)
    assert ceiling.at(99 + CALM) == -1
    assert ceiling.at(100 + CALM) == 0
    assert ceiling.at(99 + 2 * CALM) == 0
    assert ceiling.at(100 + 2 * CALM) == 1
    assert ceiling.at(10**6) == 1


def test_a_relapse_doubles_the_period_and_a_lasting_return_sets_it_back():
    ceiling = Ceiling(1)
    ceiling.drifted(0, 0)
    assert ceiling.at(CALM) == 0
    ceiling.drifted(0, CALM + 1)
    assert ceiling.at(3 * CALM) == -1
    assert ceiling.at(3 * CALM + 1) == 0
    ceiling.drifted(0, 6 * CALM)
    assert ceiling.at(7 * CALM) == 0


def test_a_late_probe_of_what_an_alarm_was_about_is_no_relapse():
    ceiling = Ceiling(2)
    assert ceiling.at(26) == 1
    assert ceiling.broken(22)
    assert ceiling.at(27) == -1
    assert ceiling.at(22 + CALM) == 0
    assert not ceiling.broken(26)
    assert ceiling.at(22 + 2 * CALM) == 1


def test_what_an_alarm_leaves_may_be_taken_by_steps_that_were_launched_before_it():
    ceiling = Ceiling(2)
    assert ceiling.at(26) == 1
    assert ceiling.drifted(1, 22)
    assert ceiling.broken(25)
    assert ceiling.at(27) == -1


def test_the_period_is_bounded():
    ceiling, step = Ceiling(1), 0
    for _ in range(20):
        ceiling.drifted(0, step)
        while ceiling.at(step) == -1:
            step += CALM
    assert step < 20 * 16 * CALM
