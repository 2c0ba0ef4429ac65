"""The path that a plan gets: by its requests, its rows, predicted costs, drift."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inferx.config import EngineConfig
from inferx.engine.messages import EngineRequest
from inferx.engine.plan import NewRow, Plan, StepResult
from inferx.engine.sampling import SamplingParams
from inferx.engine.step_paths import StepPaths
from inferx.paths.ceiling import CALM
from inferx.paths.costs import CostTable, SparseCosts
from inferx.paths.probe import StepProbe
from sparse_paths import make_costs, make_path, make_probe, make_row

Sparsity = str | float
SLOW = make_costs(sparse_at_one=1.5)  # a sparse step takes longer at any density that there is


def make_paths(path=None, sparsity: Sparsity = "auto", **options) -> StepPaths:
    config = EngineConfig(model="m", sparsity=sparsity, **options)
    paths = StepPaths.of(config, path or make_path())
    assert paths is not None
    return paths


class Steps:
    """Plans of requests that decode, one a slot, whose results come a step later."""

    def __init__(self, paths: StepPaths, *sparsities: Sparsity) -> None:
        self._paths = paths
        self._new = [
            NewRow(slot, [1], 1, SamplingParams(sparsity=sparsity), 0)
            for slot, sparsity in enumerate(sparsities)
        ]
        self.step = 0

    def plan(self, slots: list[int] | None = None, *, prefills: int = 0) -> Plan:
        self.step += 1
        slots = list(range(len(self._new))) if slots is None and self._new else slots or [0]
        count = len(slots)
        plan = Plan(
            self.step, slots, [1] * count, [1] * count, [True] * count, count - prefills,
            self._new, [], [],
        )  # fmt: skip
        self._new = []
        return self._paths.choose(plan)

    def sparsity(self, slots: list[int] | None = None, *, prefills: int = 0) -> float:
        plan = self.plan(slots, prefills=prefills)
        self.result()
        return plan.sparsity

    def result(self, *probes: StepProbe, seconds: float | None = None) -> None:
        self._paths.observe(StepResult([], [], seconds, probes))


@pytest.mark.parametrize(
    ("sparsities", "taken"),
    [
        (["auto"], 0.25),  # the other row costs too much perplexity
        ([0.5], 0.5),
        ([0.25, 0.5], 0.25),
        (["off"], 0.0),
        ([0.0], 0.0),
        ([0.5, "off"], 0.0),
        ([0.5, 0.0], 0.0),
        (["auto", "off"], 0.0),
        ([0.25] * 4, 0.25),
        ([0.25] * 5, 0.0),
    ],
)
def test_a_step_is_as_sparse_as_all_of_its_requests_allow(sparsities, taken):
    assert Steps(make_paths(), *sparsities).sparsity() == taken


def test_auto_asks_the_costs_and_a_ratio_does_not():
    path = make_path(costs=SLOW)
    assert Steps(make_paths(path), "auto").sparsity() == 0.0
    assert Steps(make_paths(path), 0.5).sparsity() == 0.5
    assert Steps(make_paths(path), 0.5, "auto").sparsity() == 0.0
    # two tokens read more, and take longer than dense
    assert Steps(make_paths(), "auto", "auto").sparsity() == 0.0


def test_a_step_with_a_prefill_is_dense():
    steps = Steps(make_paths(), 0.25, 0.25)
    assert steps.sparsity(prefills=1) == 0.0
    assert steps.sparsity([0, 1]) == 0.25


def test_auto_may_cost_as_much_perplexity_as_the_setting_says():
    assert Steps(make_paths(sparsity_max_growth=0.1), "auto").sparsity() == 0.5
    assert Steps(make_paths(sparsity_max_growth=0.005), "auto").sparsity() == 0.0


def test_in_the_batch_invariant_mode_auto_is_exact_and_a_ratio_is_what_it_says():
    paths = make_paths(sparsity=0.0, batch_invariant=True)
    assert Steps(paths, "auto").sparsity() == 0.0
    assert Steps(paths, 0.25).sparsity() == 0.25


def test_a_slot_has_the_wish_of_its_newest_request():
    paths = make_paths()
    first = Steps(paths, "off")
    assert first.sparsity() == 0.0
    assert Steps(paths, 0.25).sparsity() == 0.25


@given(
    st.lists(st.sampled_from(["off", "auto", 0.0, 0.25, 0.5]), min_size=1, max_size=6),
    st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(0, 1)), max_size=30),
    st.floats(0.1, 3.0),
)
@settings(max_examples=150)
def test_no_request_is_ever_sparser_than_it_allows(sparsities, batches, pace):
    most = {"off": 0.0, "auto": 0.25}
    steps = Steps(make_paths(make_path(costs=make_costs(pace))), *sparsities)
    steps.sparsity()
    for chosen, prefills in batches:
        slots = sorted(slot for slot in chosen if slot < len(sparsities))
        if not slots:
            continue
        taken = steps.sparsity(slots, prefills=prefills)
        assert all(taken <= most.get(sparsities[slot], sparsities[slot]) for slot in slots)
        assert not (prefills and taken)


# Requests


def resolved(paths: StepPaths, **sampling) -> SamplingParams:
    return paths.resolved(EngineRequest(1, [1], SamplingParams(**sampling))).sampling


def test_a_request_that_says_nothing_has_the_models_setting():
    for setting in ("auto", 0.25, 0.0):
        assert resolved(make_paths(sparsity=setting)).sparsity == setting
        assert resolved(make_paths(sparsity=setting), sparsity="off").sparsity == "off"


def test_prefix_pages_are_shared_within_one_sparsity():
    paths = make_paths()
    assert resolved(paths, sparsity="off").cache_salt is None
    for salt in (None, "a"):
        salts = [
            resolved(paths, sparsity=sparsity, cache_salt=salt).cache_salt
            for sparsity in ("off", 0.0, "auto", 0.25, 0.25, 0.5)
        ]
        assert salts[0] == salts[1]
        assert salts[3] == salts[4]
        assert len(set(salts)) == 4


def test_no_salt_that_a_client_gives_is_that_of_another_sparsity():
    paths = make_paths()
    sparse = resolved(paths, sparsity=0.25).cache_salt
    salted = resolved(paths, sparsity=0.25, cache_salt="a").cache_salt
    for salt in (sparse, salted, "a\0sparsity 0.25", "\0sparsity 0.25", "sparsity 0.25"):
        for sparsity in ("off", "auto", 0.25, 0.5):
            found = resolved(paths, sparsity=sparsity, cache_salt=salt).cache_salt
            assert found not in (sparse, salted, None)


# What is learned


def test_measured_densities_replace_the_expected_one():
    row = make_row(0.25)
    # reading 0.6 costs 0.94, reading 0.75 costs more than dense
    path = make_path(row, costs=make_costs(sparse_at_one=0.85))
    steps = Steps(make_paths(path), "auto")
    assert path.expected_density(0, 1) == 0.75
    assert steps.sparsity() == 0.0
    steps.plan()
    steps.result(*(make_probe(row, 2, share=2.5) for _ in range(3)))
    assert steps.sparsity() == 0.25


def test_a_measured_density_is_of_its_number_of_tokens_alone():
    """What one token reads, 0.5, would be worth it for two, which read 0.94 by expectation."""
    row = make_row(0.25)
    alike = [SparseCosts(tokens, [0.0, 1.0], [0.4, 1.3]) for tokens in (1, 2)]
    path = make_path(row, costs=CostTable([1, 2], [1.0, 1.0], alike))
    assert path.expected_density(0, 2) == pytest.approx(1 - 0.25**2)
    steps = Steps(make_paths(path), "auto", "auto")
    assert steps.sparsity([0, 1]) == 0.0
    for num_tokens, taken in ((1, 0.0), (2, 0.25)):
        steps.plan([0, 1])
        steps.result(make_probe(row, steps.step, share=2.5, num_tokens=num_tokens))
        assert steps.sparsity([0, 1]) == taken


def test_one_step_that_reads_more_moves_its_density_by_a_tenth():
    row = make_row(0.25)
    steps = Steps(make_paths(make_path(row, costs=make_costs(sparse_at_one=0.85))), "auto")
    steps.plan()
    steps.result(make_probe(row, share=2.5))  # reads 0.5, and takes 0.85
    for expected in (0.25, 0.25, 0.25, 0.0):  # 0.55, 0.595, 0.6355, and 0.672 takes 1.005
        steps.plan()
        steps.result(make_probe(row, steps.step, share=-2.5))
        assert steps.sparsity() == expected


def test_a_ratio_is_the_rows_that_it_names():
    path = make_path()
    assert [path.index_of(ratio) for ratio in (0.25, 0.5, 0.5 + 1e-9)] == [0, 1, 1]
    assert [path.index_of(ratio) for ratio in (0.0, 0.26, 0.3)] == [None] * 3


def test_steps_in_flight_are_not_waited_for():
    steps = Steps(make_paths(), "auto")
    assert [steps.plan().sparsity for _ in range(3)] == [0.25] * 3
    for _ in range(3):
        steps.result(seconds=0.6)


def test_drift_makes_steps_denser_and_is_counted():
    rows = make_row(0.25), make_row(0.5)
    paths = make_paths(make_path(*rows))
    steps = Steps(paths, 0.5)
    assert steps.sparsity() == 0.5
    steps.plan()
    steps.result(*(make_probe(rows[1], step, share=-3.0) for step in range(2, 17)))
    assert steps.sparsity() == 0.25
    steps.plan()
    steps.result(*(make_probe(rows[0], step, share=-3.0) for step in range(3, 18)))
    assert steps.sparsity() == 0.0
    assert paths.stats.drifts == 2
    steps.step += CALM + 20
    assert steps.sparsity() == 0.25


def test_broken_activations_make_steps_dense_and_are_counted():
    row = make_row(0.25)
    paths = make_paths(make_path(row))
    steps = Steps(paths, 0.25)
    steps.plan()
    steps.result(*(make_probe(row, step, num_broken=3) for step in (1, 2)))
    assert steps.sparsity() == 0.0
    assert (paths.stats.broken, paths.stats.drifts) == (1, 0)
    assert paths.stats.union_density == 0.0, "of activations that say nothing"


def test_one_passage_of_broken_activations_is_counted_once_and_passes():
    """Probes come by eight, those of a passage's last steps with the first ones after it."""
    row = make_row(0.25)
    paths = make_paths(make_path(row))
    steps, ring, sparse = Steps(paths, 0.25), [], []
    for step in range(1, 3 * CALM):
        come = ring[:8] if len(ring) >= 8 else []
        ring = ring[len(come) :]
        if steps.plan().sparsity:
            sparse.append(step)
            ring.append(make_probe(row, step, num_broken=22 <= step <= 30))
        steps.result(*come)
    assert paths.stats.broken == 1
    assert sparse == [*range(1, 26), *range(22 + CALM, 3 * CALM)]


def test_choices_are_counted_with_their_predicted_and_measured_time_and_regret():
    paths = make_paths()
    steps = Steps(paths, "auto", "off", 0.25)
    for slots, seconds in (([0], 0.7), ([0], 1.5), ([1], 9.0), ([2], 3.0)):
        steps.plan(slots)
        steps.result(seconds=seconds)
    stats = paths.stats
    assert (stats.steps, stats.choices) == (3, 2)
    assert stats.measured_seconds == pytest.approx(2.2)
    assert stats.regret_seconds == pytest.approx(0.5)
    first = 0.4 + 0.75 * 0.2  # of what a step at three quarters takes
    assert first < stats.predicted_seconds / 2 < first * 1.05


def test_the_last_probe_is_what_the_gauges_show():
    row = make_row(0.25)
    paths = make_paths(make_path(row))
    steps = Steps(paths, 0.25)
    steps.plan()
    steps.result(make_probe(row), make_probe(row, share=1.0, energy=2.0))
    assert paths.stats.union_density == pytest.approx(0.65)
    assert paths.stats.masked_energy == pytest.approx(0.045)


def test_a_plan_with_its_path_goes_over_a_wire():
    plan = msgspec.structs.replace(Steps(make_paths(), 0.5).plan(), new_rows=[])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=Plan) == plan
    assert plan.sparsity == 0.5
