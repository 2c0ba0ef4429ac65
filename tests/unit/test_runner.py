"""The runner behind the real scheduler: the same tokens however requests are batched and cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from engine_loop import Tokens, make_core, serve, tokens_of
from inferx.config import EngineConfig
from inferx.engine.messages import RequestOutput
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.errors import ModelLoadError
from inferx.model.runner import ModelRunner
from inferx.model.runners import load_runner
from inferx.source import ModelSource
from tiny_models import EOS_ID, VOCAB_SIZE, make_tiny_model
from transformers import PreTrainedModel


class Tiny(NamedTuple):
    folder: Path
    model: PreTrainedModel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    return Tiny(folder, make_tiny_model(folder, "smollm2"))


@pytest.fixture(scope="module")
def folder(tiny: Tiny) -> Path:
    return tiny.folder


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> PreTrainedModel:
    return tiny.model


def config_of(**settings: object) -> EngineConfig:
    defaults = {"model": "tiny", "device": "cpu", "dtype": "float32", "max_num_seqs": 8}
    return EngineConfig.from_mapping({**defaults, **settings})


def make_runner(folder: Path, **settings: object) -> ModelRunner:
    return load_runner(config_of(**settings), ModelSource(folder, "huggingface", "tiny"))


class Engine:
    """Runner, scheduler and loop. Use as a context manager."""

    def __init__(
        self, folder: Path, *, budget: int = 64, caching: bool = False, **settings: object
    ) -> None:
        self.runner = make_runner(folder, **settings)
        config = config_of(**settings)
        self.core = make_core(config, self.runner, caching=caching, budget=budget)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.close()

    def outputs(
        self, prompts: Sequence[Tokens], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[list[RequestOutput]]:
        return serve(self.core, prompts, params)

    def tokens(
        self, prompts: Sequence[Tokens], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Tokens]:
        return [tokens_of(outputs) for outputs in self.outputs(prompts, params)]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def prompts(*lengths: int) -> list[Tokens]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]


LENGTHS = (1, 5, 16, 17, 40, 90, 33, 2)


@pytest.fixture(scope="module")
def expected(reference: PreTrainedModel) -> list[Tokens]:
    """What transformers gives for LENGTHS, alone."""
    outputs = []
    for prompt in prompts(*LENGTHS):
        with torch.inference_mode():
            ids = reference.generate(
                torch.tensor([prompt]), max_new_tokens=30, min_new_tokens=30, do_sample=False,
                eos_token_id=None,
            )  # fmt: skip
        outputs.append(ids[0, len(prompt) :].tolist())
    return outputs


@pytest.mark.parametrize("overlap", [True, False])
def test_one_batch_with_chunked_prefill_equals_transformers(folder, expected, overlap):
    with Engine(folder, budget=24, enable_async_batch=overlap) as engine:
        assert engine.tokens(prompts(*LENGTHS), greedy(30)) == expected


def test_a_tiny_pool_with_preemptions_equals_a_large_one(folder, expected):
    with Engine(folder, num_gpu_blocks_override=12) as engine:
        assert engine.tokens(prompts(*LENGTHS), greedy(30)) == expected
        assert engine.core.stats().preemptions > 0


def test_prefix_hits_equal_misses(folder, expected):
    with Engine(folder, caching=True) as engine:
        for _ in range(2):
            assert engine.tokens(prompts(*LENGTHS), greedy(30)) == expected
        assert engine.core.stats().prefix_cache_hits > 0


def test_logits_of_many_rows_are_made_a_few_at_a_time(folder, expected, monkeypatch):
    monkeypatch.setattr("inferx.model.runner._MAX_LOGITS", 3 * VOCAB_SIZE)
    with Engine(folder) as engine:
        assert engine.tokens(prompts(*LENGTHS), greedy(30)) == expected


def test_seeded_requests_draw_the_same_after_preemptions_and_with_others(folder):
    params = [
        SamplingParams(max_tokens=30, seed=seed, ignore_eos=True, temperature=0.8, top_p=0.95)
        for seed in range(8)
    ]
    with Engine(folder) as engine:
        together = engine.tokens(prompts(*LENGTHS), params)
        alone = [
            engine.tokens([prompt], [one])[0]
            for prompt, one in zip(prompts(*LENGTHS), params, strict=True)
        ]
    with Engine(folder, num_gpu_blocks_override=12) as engine:
        preempted = engine.tokens(prompts(*LENGTHS), params)
        assert engine.core.stats().preemptions > 0
    assert together == alone == preempted


def test_generation_ends_at_an_eos_and_not_before_min_tokens(folder):
    always = {EOS_ID: 100.0}
    [[last]] = _outputs(folder, SamplingParams(temperature=0, logit_bias=always))
    assert (last.token_ids, last.finish_reason) == ([EOS_ID], "stop")
    params = SamplingParams(temperature=0, logit_bias=always, min_tokens=5, max_tokens=9)
    [outputs] = _outputs(folder, params)
    assert sum(len(output.token_ids) for output in outputs) == 6
    assert outputs[-1].finish_reason == "stop"


def _outputs(folder: Path, params: SamplingParams) -> list[list[RequestOutput]]:
    with Engine(folder) as engine:
        return engine.outputs(prompts(20), params)


def test_logprobs_equal_transformers(folder, reference):
    [prompt] = prompts(20)
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=4, ignore_eos=True)
    [outputs] = _outputs(folder, params)
    tokens = [token for output in outputs for token in output.token_ids]
    entries = [entry for output in outputs for entry in output.logprobs or ()]
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    for token, entry, exact in zip(tokens, entries, logits.log_softmax(-1), strict=True):
        assert entry.rank == 1
        assert entry.logprob == pytest.approx(exact[token].item(), abs=1e-4)
        assert entry.top_ids == exact.topk(4).indices.tolist()
        assert entry.top_logprobs == pytest.approx(exact.topk(4).values.tolist(), abs=1e-4)


@pytest.mark.usefixtures("batch_invariant")
def test_batch_invariant_logprobs_have_the_same_bits_whoever_shares_the_batch(folder):
    def result(engine: Engine, some: list[Tokens]) -> list[list[tuple[Tokens, float]]]:
        params = SamplingParams(temperature=0, max_tokens=20, logprobs=0, ignore_eos=True)
        return [
            [(output.token_ids, output.logprobs[0].logprob) for output in outputs]
            for outputs in engine.outputs(some, params)
        ]

    texts = prompts(40, 90, 1, 33)
    with Engine(folder, batch_invariant=True) as engine:
        alone = [result(engine, [text])[0] for text in texts]
    with Engine(folder, batch_invariant=True, budget=23) as engine:
        assert result(engine, texts) == alone
    with Engine(folder, batch_invariant=True, budget=60, num_gpu_blocks_override=8) as engine:
        assert result(engine, texts) == alone
        assert engine.core.stats().preemptions > 0
    with Engine(folder, batch_invariant=True, caching=True) as engine:
        assert result(engine, texts) == alone
        assert result(engine, texts) == alone
        assert engine.core.stats().prefix_cache_hits > 0


def _plan(**changes: object) -> Plan:
    row = NewRow(0, [5, 6, 7], 3, SamplingParams(temperature=0), 0)
    values: dict = {
        "step": 1, "slots": [0], "starts": [0], "num_tokens": [3], "samples": [True],
        "num_decodes": 0, "new_rows": [row], "block_updates": [(0, 0, [4])], "page_copies": [],
    }  # fmt: skip
    return Plan(**{**values, **changes})


def test_launch_does_not_wait_for_the_forward_pass(folder, monkeypatch):
    runner = make_runner(folder)
    may_run = threading.Event()
    forward = runner._model.forward

    def waiting(*args: object) -> torch.Tensor:
        assert may_run.wait(30)
        return forward(*args)

    monkeypatch.setattr(runner._model, "forward", waiting)
    runner.launch(_plan())
    decode = {"starts": [3], "num_tokens": [1], "num_decodes": 1}
    runner.launch(_plan(step=2, new_rows=[], block_updates=[], **decode))
    may_run.set()
    first, second = runner.collect(), runner.collect()
    runner.close()
    assert len(first.token_ids) == len(second.token_ids) == 1


def test_what_fails_in_a_plan_is_raised_by_its_collect(folder, monkeypatch):
    runner = make_runner(folder)

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner._model, "forward", broken)
    runner.launch(_plan())
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.collect()
    runner.close()


def test_pages_are_copied_before_the_forward_pass(folder):
    runner = make_runner(folder)
    runner.launch(_plan())
    runner.collect()
    decode = {"starts": [3], "num_tokens": [1], "num_decodes": 1, "new_rows": []}
    runner.launch(_plan(step=2, block_updates=[], **decode))
    [[in_place]] = runner.collect().token_ids
    # Page 9 takes page 4's first three tokens, and the fourth is computed there
    moved = {"block_updates": [(0, 0, [9])], "page_copies": [(4, 9)]}
    runner.launch(_plan(step=3, **decode, **moved))
    [[copied]] = runner.collect().token_ids
    runner.close()
    assert copied == in_place


def test_the_info_tells_sizes_and_stages(folder, reference):
    runner = make_runner(folder, num_gpu_blocks_override=20)
    runner.close()
    info = runner.info
    assert (info.num_blocks, info.block_size, info.max_model_len) == (20, 16, 320)
    assert (info.device, info.vocab_size) == ("cpu", VOCAB_SIZE)
    assert {info.dtype, info.weight_dtype, info.kv_cache_dtype} == {"float32"}
    assert info.eos_token_ids == [EOS_ID, 256]
    assert info.weight_bytes == 4 * sum(p.numel() for p in reference.parameters())
    assert info.kv_cache_bytes == 20 * 16 * 2 * 2 * 3 * 8 * 4  # K, V; layers; heads; size; fp32
    assert set(info.load_seconds) == {"config", "weights", "kv_cache", "warm_up"}


def test_the_pool_follows_the_memory_setting(folder):
    a_page = 16 * 2 * 2 * 3 * 8 * 4
    runner = make_runner(folder, kv_cache_memory_bytes=7 * a_page + 1)
    runner.close()
    assert (runner.info.num_blocks, runner.info.max_model_len) == (7, 112)


def test_max_model_len_is_the_models_own_where_the_pool_holds_it(folder):
    runner = make_runner(folder)
    runner.close()
    assert runner.info.max_model_len == 512


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_model_len": 513}, "'tiny'.*max_model_len is 513.*at most 512"),
        ({"max_model_len": 64, "num_gpu_blocks_override": 3}, "'tiny'.*48 tokens.*64 tokens"),
        ({"kv_cache_memory_bytes": 100}, "'tiny'.*0 tokens.*16 tokens"),
        ({"kv_cache_memory_bytes": 10**15}, "'tiny'.*1000000.00 GB.*are free on the device 'cpu'"),
    ],
)
def test_settings_that_cannot_be_met_fail_the_load_with_one_sentence(folder, settings, sentence):
    with pytest.raises(ModelLoadError, match=sentence):
        make_runner(folder, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_fails_the_load(folder):
    with pytest.raises(ModelLoadError, match="device is 'cuda' and torch sees no GPU"):
        make_runner(folder, device="cuda")


def test_a_model_larger_than_the_memory_fails_the_load(folder, monkeypatch):
    monkeypatch.setattr("inferx.model.footprint.available_memory", lambda device: 1000)
    with pytest.raises(ModelLoadError, match=r"'tiny'.*memory are free"):
        make_runner(folder)
