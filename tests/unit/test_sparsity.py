"""Measuring, calibrating and evaluating sparsity, on tiny models and a text of random bytes."""

from __future__ import annotations

import gc
import json
import os
import weakref
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from calibrated import ENOUGH, TEXT, calibrated, open_model, silent
from inferx.errors import SparsityError
from inferx.model.activations import PROJECTIONS, Site
from inferx.source import ModelSource
from inferx.sparse.calibrating import calibrate, count_scores
from inferx.sparse.calibration import (
    Calibration,
    default_path,
    load_calibration,
    save_calibration,
)
from inferx.sparse.evaluating import Evaluator
from inferx.sparse.fingerprint import model_fingerprint
from inferx.sparse.masking import Masked, Recorded, Scoring, Thresholds, TopK
from inferx.sparse.measuring import ScoreHistograms, measure
from inferx.sparse.products import itemsize, weight_shares, worthwhile
from inferx.sparse.search import STEP, _LayerErrors, greedy_split, layer_splits, thresholds
from inferx.sparse.statistics import Summary
from inferx.sparse.windows import CONTEXT, COUNTED, WINDOW, Text, WindowedModel
from inferx.text.tokenizer import Tokenizer
from paged import PagedRun
from tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return open_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def text(tiny) -> Text:
    return Text(TEXT, Tokenizer.from_source(tiny[0]), "the text 'bytes'")


@pytest.fixture(scope="module")
def calibration(tiny, text) -> Calibration:
    source, windowed = tiny
    return calibrate(
        windowed, source, target=0.25, scores="weight-aware", projections=PROJECTIONS,
        texts=text.calibration(ENOUGH), held_out=text.held_out(ENOUGH), progress=silent,
    )  # fmt: skip


# Text


def test_the_halves_of_a_text_share_no_token(text):
    first, second = text.calibration(2 * COUNTED), text.held_out(2 * COUNTED)
    ids = list(TEXT.encode())
    assert text.whole(1)[0] == first[0]
    halves = (len(part) * WINDOW for part in (first, second))
    assert list(halves) == [2 * WINDOW] * 2
    assert second[0] != first[0]
    assert len(ids) // 2 >= 2 * WINDOW


def test_a_short_text_is_refused_with_what_it_takes(text):
    with pytest.raises(
        SparsityError,
        match=r"^half of the text 'bytes' has 3 windows of 512 tokens, and 1537 tokens to count "
        r"take 5: give a longer text, or lower --tokens$",
    ):
        text.held_out(4 * COUNTED + 1)


# Masks


def test_masks_are_applied_and_recorded():
    rule = Recorded(TopK(0.75))
    kept = Masked(rule)(Site(0, "qkv"), torch.ones(3, 64))
    assert kept.sum(-1).tolist() == [16.0] * 3
    assert rule.share(Site(0, "qkv")) == Summary(0.75, 0.0)
    assert rule.energy(Site(0, "qkv")).mean == pytest.approx(0.75)


def test_masking_nothing_changes_nothing(tiny, text):
    _, windowed = tiny
    [window, _] = text.whole(ENOUGH)
    rule = Recorded(TopK(0.0))
    windowed.start([window])
    assert windowed.surprises(Masked(rule)) == windowed.surprises()
    assert rule.model_share(windowed.config) == 0.0


def test_weight_aware_scores_are_magnitudes_times_column_norms(tiny):
    _, windowed = tiny
    down = windowed.model.layers[1].down_proj.packed.weight.to_dense()
    x = torch.linspace(-2, 2, 96).repeat(2, 1)
    scores = Scoring(windowed.model, "weight-aware")(Site(1, "down"), x)
    torch.testing.assert_close(scores, x.abs() * down.norm(dim=0))


def test_the_shares_of_a_layers_weights(tiny):
    # qkv 64 x 128, o 64 x 64, gate_up 64 x 192, down 96 x 64
    shares = {name: round(share * 480) for name, share in weight_shares(tiny[1].config).items()}
    total = 8192 + 4096 + 12288 + 6144
    assert {name: share * total / 480 for name, share in shares.items()} == {
        "qkv": 8192, "o": 4096, "gate_up": 12288, "down": 6144,
    }  # fmt: skip


def test_numbers_that_are_not_finite_are_named(tiny):
    _, windowed = tiny
    counting = ScoreHistograms([Scoring(windowed.model, "magnitude")])
    x = torch.full((WINDOW, 64), torch.inf)
    with pytest.raises(SparsityError, match=r"the input of layer 1, o has numbers that are not"):
        counting(Site(1, "o"), x)


def test_a_windows_context_is_dense_whatever_is_masked_behind_it(tiny, text):
    _, windowed = tiny
    seen = Recorded(TopK(1.0))
    first, second = text.whole(ENOUGH)
    windowed.start([first])
    before = windowed.surprises()
    windowed.surprises(Masked(seen))
    assert windowed.surprises() == before
    windowed.start([second])
    assert windowed.surprises() != before
    assert seen.share(Site(1, "down")) == Summary(1.0, 0.0)


def test_a_window_gives_what_the_whole_of_it_gives_at_once(tiny, text):
    _, windowed = tiny
    [window, _] = text.whole(ENOUGH)
    windowed.start([window])
    run = PagedRun(windowed.model)
    with torch.inference_mode():
        logits = run.step({"window": window})["window"]
        found = windowed.model.logits(windowed.hidden())
    torch.testing.assert_close(found, logits[CONTEXT:], rtol=1e-4, atol=1e-4)


def test_a_block_is_a_layer_of_the_forward_pass(tiny, text):
    _, windowed = tiny
    windowed.start(text.whole(ENOUGH))
    x = windowed.embed()
    for index in range(2):
        x = windowed.fed_forward(index, *windowed.attended(index, x))
    assert torch.equal(windowed.model.norm(x), windowed.hidden())


def test_windows_that_are_computed_at_once_get_what_each_gets_alone(tiny, text):
    _, windowed = tiny
    windows = text.whole(3 * COUNTED)
    alone = []
    for window in windows:
        windowed.start([window])
        alone += windowed.surprises(Masked(TopK(0.5)))
    windowed.start(windows)
    assert windowed.surprises(Masked(TopK(0.5))) == pytest.approx(alone, rel=1e-5)
    assert len(set(alone)) == 3


# The search


def test_layers_are_split_by_what_masks_do_to_their_output(tiny, text):
    _, windowed = tiny
    [window, _] = text.calibration(ENOUGH)
    scoring = Scoring(windowed.model, "magnitude")
    [histograms] = count_scores(windowed, [scoring], [window], silent)
    found = list(layer_splits(windowed, scoring, histograms, window, [0.25, 0.5]))

    def output(index, x, activations=None):
        halves = windowed.attended(index, x, activations)
        return windowed.fed_forward(index, *halves, activations)

    def error(shares):
        rule = Thresholds(scoring, thresholds(histograms, {index: shares}))
        return (output(index, x, Masked(rule)) - dense).square().sum().item()

    windowed.start([window])
    x = windowed.embed()
    for index, splits in enumerate(found):
        dense = output(index, x)
        wanted = greedy_split(
            lambda trials: list(map(error, trials)), weight_shares(windowed.config), [0.25, 0.5]
        )
        assert splits == wanted
        x = dense


def first_layer(windowed, text):
    """What its search goes by."""
    [window, _] = text.calibration(ENOUGH)
    scoring = Scoring(windowed.model, "magnitude")
    [histograms] = count_scores(windowed, [scoring], [window], silent)
    windowed.start([window])
    return _LayerErrors(windowed, 0, windowed.embed(), scoring, histograms)


def test_a_layer_that_is_searched_leaves_no_tensors_behind(tiny, text):
    _, windowed = tiny
    layer = first_layer(windowed, text)
    layer([dict.fromkeys(PROJECTIONS, 0.5)])
    alive = weakref.ref(layer)
    gc.disable()
    try:
        del layer
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("cheapest", "halves"), [("qkv", 7), ("o", 7), ("gate_up", 3)])
def test_a_step_of_the_search_computes_no_half_that_the_one_before_it_had(
    tiny, text, monkeypatch, cheapest, halves
):
    """Three in the first step, then two in each after one of their products got sparser."""
    _, windowed = tiny
    layer = first_layer(windowed, text)
    computed = []
    attended = windowed.attended

    def counted(*arguments):
        computed.append(arguments)
        return attended(*arguments)

    def errors(trials):
        layer(trials)
        return [-shares[cheapest] for shares in trials]

    monkeypatch.setattr(windowed, "attended", counted)
    greedy_split(errors, dict.fromkeys(PROJECTIONS, 0.25), [3 * STEP])
    assert len(computed) == halves


def test_the_search_takes_from_the_product_that_costs_least_until_another_costs_less():
    saved = {"qkv": 0.25, "o": 0.25, "gate_up": 0.25, "down": 0.25}
    price = {"qkv": 1.0, "o": 1.0, "gate_up": 4.0, "down": 4.0}

    def errors(trials):
        return [sum(price[name] * share**2 for name, share in one.items()) for one in trials]

    [low, high] = greedy_split(errors, saved, [2 * STEP, 10 * STEP])
    # squares are cheapest where price times share is equal: 4 to 1
    assert low == pytest.approx({"qkv": 4 * STEP, "o": 4 * STEP, "gate_up": 0, "down": 0})
    assert high == pytest.approx(
        {"qkv": 16 * STEP, "o": 16 * STEP, "gate_up": 4 * STEP, "down": 4 * STEP}
    )


@pytest.mark.parametrize("target", [0.01, 0.25, 0.33, 0.65])
def test_the_search_reaches_its_target_exactly(target):
    saved = {"qkv": 0.15, "o": 0.1, "gate_up": 0.5, "down": 0.25}
    [shares] = greedy_split(lambda trials: [max(t.values()) for t in trials], saved, [target])
    assert sum(saved[name] * share for name, share in shares.items()) == pytest.approx(target)


# The tools


def test_measure_has_a_row_for_each_product_with_s_at_each_threshold(tiny, text):
    _, windowed = tiny
    found = measure(windowed, "tiny", text.whole(ENOUGH), [0.0, 0.5, 1e6], silent)
    assert [(site.layer, site.projection) for site in found.sites] == [
        (layer, projection) for layer in (0, 1) for projection in PROJECTIONS
    ]
    assert found.num_tokens == ENOUGH
    for site in found.sites:
        quantiles = list(site.quantiles.values())
        assert quantiles == sorted(quantiles)
        assert site.sparsity["0.0"].mean < site.sparsity["0.5"].mean < 1
        assert site.sparsity["1000000.0"] == Summary(1.0, 0.0)


def test_a_calibration_reaches_its_target_and_says_what_it_costs(tiny, calibration):
    assert calibration.target == 0.25
    assert calibration.reached == pytest.approx(0.25, abs=0.03)
    quality = calibration.quality
    ratio = quality.perplexity_sparse / quality.perplexity_dense
    assert quality.growth == pytest.approx(ratio - 1)
    shares = weight_shares(tiny[1].config)
    for layer in (0, 1):
        targets = [site for site in calibration.sites if site.layer == layer]
        total = sum(shares[site.projection] * site.target for site in targets)
        assert total == pytest.approx(0.25)
        for site in targets:
            assert site.masked_share.mean == pytest.approx(site.target, abs=0.1)
            assert site.masked_energy.mean <= site.masked_share.mean


def test_products_that_are_not_named_stay_as_they_are(tiny, text):
    source, windowed = tiny
    found = calibrated(source, windowed, 0.25, projections=["down", "gate_up"])
    assert found.projections == ["gate_up", "down"]
    assert {site.threshold for site in found.sites if site.projection in ("qkv", "o")} == {-1}
    parts = weight_shares(windowed.config, found.projections)
    for layer in range(windowed.config.num_layers):
        sites = {site.projection: site for site in found.sites if site.layer == layer}
        assert [sites[name].masked_share.mean for name in ("qkv", "o")] == [0, 0]
        assert sum(part * sites[name].target for name, part in parts.items()) == pytest.approx(0.25)
    assert found.reached == pytest.approx(0.25, abs=0.03)  # of the two products' weights


@pytest.mark.parametrize(
    ("hidden", "inner", "heads", "num_bytes", "names"),
    [
        (4096, 14336, 32, 2, ("gate_up", "down")),  # Llama-3-8B
        (4096, 14336, 32, 1, ("gate_up", "down")),
        (2048, 8192, 32, 2, ("gate_up",)),  # Llama-3.2-1B: 67, 34 MB
        (2048, 8192, 32, 1, PROJECTIONS),
        (8192, 28672, 64, 1, PROJECTIONS),  # Llama-3-70B
        (576, 1536, 9, 2, PROJECTIONS),  # SmolLM2-135M
    ],
)
def test_worthwhile_products_are_those_of_55_megabytes_or_all(
    tiny, hidden, inner, heads, num_bytes, names
):
    config = replace(
        tiny[1].config,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=hidden // heads,
    )
    assert worthwhile(config, num_bytes) == names


def test_weights_of_32_bits_have_16_on_a_gpu(tiny):
    assert itemsize(tiny[1].model) == 2


def test_a_calibration_can_be_made_again_exactly(tiny, text, calibration):
    source, windowed = tiny
    again = calibrate(
        windowed, source, target=0.25, scores="weight-aware", projections=PROJECTIONS,
        texts=text.calibration(ENOUGH), held_out=text.held_out(ENOUGH), progress=silent,
    )  # fmt: skip
    assert again == calibration


def test_a_saved_calibration_is_read_again(tiny, calibration, tmp_path):
    source, windowed = tiny
    save_calibration(calibration, tmp_path / "c.json")
    found = load_calibration(tmp_path / "c.json", source, windowed.config)
    assert msgspec.structs.replace(found, checksum="") == calibration
    assert found.thresholds[Site(1, "down")] == calibration.sites[-1].threshold


def test_a_calibration_lies_beside_its_model(tmp_path):
    folder = ModelSource(tmp_path, "huggingface")
    assert default_path(folder, 0.4, "magnitude") == tmp_path / "sparsity-40-magnitude.json"
    gguf = ModelSource(tmp_path / "model.q8.gguf", "gguf")
    assert default_path(gguf, 0.25, "weight-aware") == (
        tmp_path / "model.q8.sparsity-25-weight-aware.json"
    )


def refusal(path: Path, source: ModelSource, windowed: WindowedModel) -> str:
    with pytest.raises(SparsityError) as refused:
        load_calibration(path, source, windowed.config)
    return str(refused.value)


def test_a_calibration_of_another_model_is_refused(tiny, calibration, tmp_path):
    path = tmp_path / "c.json"
    save_calibration(calibration, path)
    source, windowed = open_model(tmp_path / "wider", intermediate_size=112)
    assert refusal(path, source, windowed) == (
        "calibration file 'c.json' is of model 'tiny', whose intermediate_size is 96, and that of "
        "model 'tiny' is 112: calibrate this model"
    )
    source, windowed = open_model(tmp_path / "other", seed=1)
    assert refusal(path, source, windowed) == (
        "calibration file 'c.json' is of model 'tiny', and model 'tiny' has the same shape with "
        "other weights: calibrate this model"
    )


def test_a_calibration_that_was_changed_is_refused(tiny, calibration, tmp_path):
    path = tmp_path / "c.json"
    save_calibration(calibration, path)
    content = json.loads(path.read_text())
    content["sites"][0]["threshold"] *= 2
    path.write_text(json.dumps(content))
    assert refusal(path, *tiny) == (
        "calibration file 'c.json' was changed after it was written: make it again with "
        "'inferx sparsity calibrate'"
    )
    path.write_text(json.dumps({**content, "format": 2}))
    assert "has format 2, and this InferX reads 1" in refusal(path, *tiny)
    for broken in ("{", '"text"', json.dumps({**content, "sites": 3})):
        path.write_text(broken)
        assert refusal(path, *tiny).startswith("calibration file 'c.json' is not one (")
    path.unlink()
    assert refusal(path, *tiny) == "calibration file 'c.json' cannot be read: No such file or directory"  # fmt: skip  # noqa: E501


def test_what_is_no_calibration_is_neither_waited_for_nor_read_whole(tiny, tmp_path):
    path = tmp_path / "c.json"
    again = "make it again with 'inferx sparsity calibrate'"
    os.mkfifo(path)
    assert refusal(path, *tiny) == f"calibration file 'c.json' is no regular file: {again}"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refusal(path, *tiny) == f"calibration file 'c.json' is no regular file: {again}"
    path.unlink()
    path.symlink_to(path.name)
    assert refusal(path, *tiny).startswith("calibration file 'c.json' cannot be read: ")
    path.unlink()
    path.touch()
    os.truncate(path, 100_000_000)
    assert refusal(path, *tiny) == (
        "calibration file 'c.json' has 100000000 bytes, and none has more than 16777216: " + again
    )
    path.write_text('{"format": ' + "[" * 100_000)
    assert refusal(path, *tiny).startswith("calibration file 'c.json' is not one (")
    path.write_text('{"x": ' + "[" * 100_000)
    assert refusal(path, *tiny) == (
        f"calibration file 'c.json' is not one (it is nested too deeply): {again}"
    )


def test_a_calibration_has_its_models_sites_in_order_and_each_once(tiny, calibration, tmp_path):
    path = tmp_path / "c.json"
    first, *others = calibration.sites
    for sites in (others, [*others, first], [first, *others, first]):
        save_calibration(msgspec.structs.replace(calibration, sites=sites), path)
        assert refusal(path, *tiny) == (
            "calibration file 'c.json' has not the sites of its model, each once: make it again "
            "with 'inferx sparsity calibrate'"
        )


def test_a_fingerprint_is_the_same_for_the_same_weights_alone(tmp_path):
    make_tiny_model(tmp_path / "a")
    make_tiny_model(tmp_path / "b")
    make_tiny_model(tmp_path / "c", seed=1)
    found = [model_fingerprint(ModelSource(tmp_path / name, "huggingface")) for name in "abc"]
    assert found[0] == found[1] != found[2]


def test_a_curve_has_a_point_for_each_way_and_target(tiny, text, calibration):
    _, windowed = tiny
    evaluator = Evaluator(windowed, text.calibration(ENOUGH), text.held_out(ENOUGH), silent)
    found = evaluator.curve("tiny", [0.25, 0.5], calibration)
    assert [(point.way, point.target) for point in found.points] == [
        *(("uniform", target) for target in (0.25, 0.5)),
        *(("top-k", target) for target in (0.25, 0.5)),
        *(("calibrated", target) for target in (0.25, 0.5)),
        *(("weight-aware", target) for target in (0.25, 0.5)),
        ("file", 0.25),
    ]
    for point in found.points:
        assert point.reached == pytest.approx(point.target, abs=0.05)
        assert point.change.low < point.change.mean < point.change.high
        assert (point.from_uniform is None) == (point.way == "uniform")
        assert (point.from_topk is None) == (point.way == "top-k")
    # the file was found on the same windows as the weight-aware thresholds
    aware, file = found.points[6], found.points[8]
    assert file.surprises == aware.surprises


def test_thresholds_mask_scores_up_to_their_own(tiny):
    _, windowed = tiny
    rule = Thresholds(Scoring(windowed.model, "magnitude"), {Site(0, "o"): 1.0})
    kept = rule(Site(0, "o"), torch.tensor([[0.5, -1.0, 1.5, -2.0]]))
    assert kept.tolist() == [[False, False, True, True]]
