"""GpuRunner: executes plans on a Llama-like model without ever waiting for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import msgspec
import torch

from inferx.config import EngineConfig
from inferx.engine.plan import Plan, StepResult
from inferx.model.gpu.attention import AttentionShape
from inferx.model.gpu.launched import Launched
from inferx.model.gpu.limits import Limits
from inferx.model.gpu.llama import GpuLlama
from inferx.model.gpu.masked import GpuRows
from inferx.model.gpu.masked_llama import MaskedLlama
from inferx.model.gpu.startup import Rehearsal, check_rows
from inferx.model.gpu.steps import Steps
from inferx.model.gpu.stopwatch import StopWatch
from inferx.model.llama import LlamaForCausalLM
from inferx.model.loading import LoadedModel
from inferx.model.placement import KVSize, size_kv_cache
from inferx.observe.stages import Stages
from inferx.paths.info import SparsePath
from inferx.source import load_error
from inferx.sparse.timing import TimeStep, decode_plan, measure_costs


class GpuRunner:
    """The Runner protocol. Steps are launched in order on one stream, from the caller's thread.

    On a CPU, where Triton's interpreter runs the kernels, it does the same without graphs: so that
    its tests run anywhere.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedModel, stages: Stages) -> None:
        """Raises ModelLoadError."""
        assert isinstance(loaded.model, LlamaForCausalLM)
        self._device = loaded.device
        self._stream = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())  # which loaded the weights
        self._launched: deque[Launched] = deque()
        check_rows(config.max_num_seqs, AttentionShape.of(loaded.config), loaded.source)
        limits = Limits.of(config, loaded)
        with self.computing():
            self._model = GpuLlama(loaded.model, loaded.dtype)
            self.sparse_rows = _rows(loaded, loaded.model)
            self._steps = Steps(limits, loaded)
            activation_bytes = self._rehearse(limits, loaded, stages)
            with stages("kv_cache"):
                size = self._kv_size(config, loaded, activation_bytes)
                self._kv = [
                    loaded.pages(size.num_blocks, limits.block_size)
                    for _ in range(loaded.config.num_layers)
                ]
            with stages("graphs"):
                self._steps.capture("dense", self._model, self._kv)
            sparse_path = self._sparse_path(limits, loaded, size, stages)
        info = loaded.info(config, size, stages)
        self.info = msgspec.structs.replace(info, sparse_path=sparse_path)

    def launch(self, plan: Plan) -> None:
        with self.computing():
            self._launched.append(self._execute(plan))

    def collect(self) -> StepResult:
        return self._launched.popleft().result()

    def close(self) -> None:
        """Waits for the device."""
        if self._stream is not None:
            self._stream.synchronize()
        self._launched.clear()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is launched within goes to the runner's stream."""
        on_stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.inference_mode(), on_stream:
            yield

    def timing(self, num_blocks: int, vocab_size: int) -> TimeStep:
        """Runs decode steps of requests that nobody has, on either path, with whatever thresholds
        there are: only before the first request."""

        def time_step(tokens: int, is_masked: bool) -> float:
            first = decode_plan(tokens, num_blocks, vocab_size, sparsity=float(is_masked))
            again = msgspec.structs.replace(first, new_rows=[], block_updates=[])
            self._run(first)  # keeps the device busy while the next one is prepared
            watch = StopWatch(self._device)
            launched = self._run(again)
            watch.stop()
            launched.result()
            return watch.seconds

        return time_step

    def _execute(self, plan: Plan) -> Launched:
        rows = self.sparse_rows
        if rows is None:
            return self._run(plan)
        probes, watch = rows.probe.take(), StopWatch(self._device)
        if plan.sparsity:
            rows.select(plan.sparsity)
        launched = self._run(plan)
        watch.stop()
        if plan.sparsity:
            rows.probe.push(plan.step, plan.sparsity, len(plan.slots))
        return launched._replace(watch=watch, probes=probes)

    def _run(self, plan: Plan) -> Launched:
        return self._steps.run(plan, self._model, self._kv)

    def _rehearse(self, limits: Limits, loaded: LoadedModel, stages: Stages) -> int:
        """Bytes that steps take beside weights and pages; 0 on a CPU, where nobody counts them."""
        if self._stream is None:
            return 0
        rehearsal = Rehearsal(self._steps, limits, loaded, self.sparse_rows)
        with stages("compile"):
            rehearsal.compile()
        with stages("profile"):
            return rehearsal.activation_bytes(self._model)

    def _kv_size(self, config: EngineConfig, loaded: LoadedModel, activation_bytes: int) -> KVSize:
        return size_kv_cache(
            config,
            loaded.source,
            loaded.config,
            dtype=loaded.kv_dtype,
            device=self._device,
            weight_bytes=loaded.weight_bytes,
            activation_bytes=activation_bytes,
        )

    def _sparse_path(
        self, limits: Limits, loaded: LoadedModel, size: KVSize, stages: Stages
    ) -> SparsePath | None:
        """Its graphs are captured, and its steps measured. None where no row is calibrated."""
        rows = self.sparse_rows
        if rows is None:
            return None
        assert isinstance(loaded.model, LlamaForCausalLM)
        with stages("sparse_path"):
            masked = MaskedLlama(loaded.model, loaded.dtype, rows)
            self._steps.capture("sparse", masked, self._kv)
            time_step = self.timing(size.num_blocks, loaded.config.vocab_size)
            return rows.described(measure_costs(time_step, rows, limits.max_num_seqs))


def _rows(loaded: LoadedModel, model: LlamaForCausalLM) -> GpuRows | None:
    if not loaded.calibrations:
        return None
    try:
        return GpuRows(loaded.calibrations, model, loaded.device)
    except ValueError as error:
        raise load_error(loaded.source, f"it cannot be served sparsely: {error}") from None
    except torch.OutOfMemoryError:
        raise load_error(
            loaded.source,
            "the GPU's memory does not suffice for the second copies of weights that sparse steps "
            "read: set sparsity to 'off'",
        ) from None
