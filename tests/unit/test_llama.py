"""The fused models against transformers', with random weights: every family and its options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inferx.engine.plan import NewRow, Plan
from inferx.engine.sampling import SamplingParams
from inferx.model.batch import KVCache
from inferx.model.input_batch import InputBatch
from inferx.model.llama import LlamaForCausalLM
from inferx.model.registry import load_config
from inferx.model.weights import iter_weights
from inferx.source import ModelSource
from tiny_models import FUSED, VOCAB_SIZE, make_tiny_model
from torch import Tensor
from transformers import PreTrainedModel

CPU = torch.device("cpu")
BLOCK = 16
NUM_BLOCKS = 40

OPTIONS = {
    **{family: (family, {}) for family in FUSED},
    "llama with every bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope linear": ("llama", {"rope_parameters": {
        "rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}}),
    "llama, rope dynamic": ("llama", {"rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}}),
    "llama, 7 query heads a KV head, head size 80": ("llama", {
        "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 80, "hidden_size": 56}),
    "qwen2, head size 96": ("qwen2", {"head_dim": 96}),
}  # fmt: skip


class Paged:
    """A model behind an InputBatch, driven by plans made by hand. Pages start as NaN."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        config = model.config
        shape = (NUM_BLOCKS, BLOCK, config.num_kv_heads, config.head_dim)
        self.kv = [
            KVCache(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
            for _ in range(config.num_layers)
        ]
        self.batch = InputBatch(4, max_model_len=160, block_size=BLOCK, device=CPU)
        for slot in range(4):  # pages 39, 35, ... belong to slot 0, and so on
            self.batch.update_blocks([(slot, 0, list(range(NUM_BLOCKS - 1 - slot, -1, -4)))])

    @torch.inference_mode()
    def logits(self, rows: list[tuple[int, int, int]]) -> Tensor:
        """rows: slot, start, number of tokens; the logits after each row's last token."""
        slots, starts, counts = (list(column) for column in zip(*rows, strict=True))
        plan = Plan(0, slots, starts, counts, [True] * len(rows), counts.count(1), [], [], [])
        batch = self.batch.forward_batch(plan)
        hidden = self.model.forward(batch, self.kv)
        return self.model.logits(hidden[batch.logits_indices])


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    source = ModelSource(folder, "huggingface")
    config = load_config(source)
    model = LlamaForCausalLM(config, dtype=dtype, device=CPU)
    model.load_weights(iter_weights(source, config, dtype))
    return model


def sequences(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 250, (n,), generator=generator).tolist() for n in lengths]


@torch.inference_mode()
def reference_logits(reference: PreTrainedModel, tokens: list[int]) -> Tensor:
    return reference(torch.tensor([tokens])).logits[0].float()


@pytest.mark.parametrize("option", OPTIONS)
def test_logits_equal_transformers_in_mixed_steps(tmp_path, option):
    family, overrides = OPTIONS[option]
    reference = make_tiny_model(tmp_path, family, **overrides)
    paged = Paged(load(tmp_path))
    texts = sequences(40, 130, 23)
    for slot, tokens in enumerate(texts):
        paged.batch.add(NewRow(slot, tokens, len(tokens), SamplingParams(), 0))
    expected = [reference_logits(reference, tokens) for tokens in texts]

    steps = [
        [(0, 0, 39), (1, 0, 20)],  # two prefills
        [(0, 39, 1), (1, 20, 70), (2, 0, 20)],  # a decode, a chunk, a prefill
        [(2, 20, 1), (1, 90, 38)],
        [(2, 21, 1), (1, 128, 1)],  # decodes
        [(1, 129, 1), (2, 22, 1)],
    ]
    for step in steps:
        got = paged.logits(step)
        wanted = torch.stack([expected[slot][start + n - 1] for slot, start, n in step])
        torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("family", ["llama", "smollm2", "qwen2", "qwen3", "mistral-sliding"])
def test_greedy_tokens_equal_transformers(tmp_path, family):
    reference = make_tiny_model(tmp_path, family)
    paged = Paged(load(tmp_path))
    texts = sequences(1, 30, 77)
    for slot, tokens in enumerate(texts):
        paged.batch.add(NewRow(slot, tokens, len(tokens), SamplingParams(), 0))
    rows = [(slot, 0, len(tokens)) for slot, tokens in enumerate(texts)]
    outputs: list[list[int]] = [[], [], []]
    for _ in range(40):
        token_ids = paged.logits(rows).argmax(-1)
        rows = [(slot, start + n, 1) for slot, start, n in rows]
        for (slot, position, _), token in zip(rows, token_ids.tolist(), strict=True):
            outputs[slot].append(token)
            paged.batch.token_pool[slot, position] = token

    for tokens, output in zip(texts, outputs, strict=True):
        with torch.inference_mode():
            expected = reference.generate(
                torch.tensor([tokens]), max_new_tokens=40, min_new_tokens=40, do_sample=False,
                eos_token_id=None,
            )  # fmt: skip
        assert output == expected[0, len(tokens) :].tolist()


def test_bfloat16_stays_near_transformers(tmp_path):
    reference = make_tiny_model(tmp_path, "smollm2", dtype="bfloat16")
    paged = Paged(load(tmp_path, torch.bfloat16))
    paged.kv = [KVCache(k.bfloat16(), v.bfloat16()) for k, v in paged.kv]
    [tokens] = sequences(60)
    paged.batch.add(NewRow(0, tokens, 60, SamplingParams(), 0))
    got = paged.logits([(0, 0, 60)])[0].log_softmax(-1)
    expected = reference_logits(reference, tokens)[-1].log_softmax(-1)
    assert got.shape == (VOCAB_SIZE,)
    assert (got - expected).abs().mean() < 0.05
