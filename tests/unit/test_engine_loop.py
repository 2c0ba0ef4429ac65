"""The engine's loop between its wire and its core."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from inferx.engine.core import EngineCore
from inferx.engine.messages import (
    AbortRequests,
    AddRequests,
    EngineRequest,
    FromEngine,
    Ping,
    Pong,
    StepOutputs,
    StopEngine,
    ToEngine,
)
from inferx.engine.process import EngineLoop
from inferx.engine.sampling import SamplingParams
from inferx.engine.scheduler import Scheduler
from inferx.engine.wire import Wire, engine_wire, parent_wire, private_directory
from inferx.memory.pool import PagePool
from paged_store import EOS_TOKEN_IDS, PagedStore


class Counted(EngineCore):
    """Counts how often the loop has looked whether there is work."""

    looks = 0

    @property
    def has_work(self) -> bool:
        self.looks += 1
        return super().has_work


@pytest.fixture
def core() -> Counted:
    scheduler = Scheduler(
        pool=PagePool(32, 16, enable_prefix_caching=True),
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_model_len=120,
        eos_token_ids=EOS_TOKEN_IDS,
    )
    runner = PagedStore(num_blocks=32, block_size=16, max_num_seqs=4, max_num_batched_tokens=32)
    return Counted(scheduler, runner, overlap=True)


@pytest.fixture
def parent(core: Counted) -> Iterator[Wire[FromEngine, ToEngine]]:
    """The parent's end, of a loop that runs in a thread."""
    with private_directory() as directory:
        ours, engines = parent_wire(directory), engine_wire(directory)
        loop = threading.Thread(target=EngineLoop(core, "cpu", engines).run)
        loop.start()
        yield ours
        ours.send(StopEngine())
        loop.join(10)
        assert not loop.is_alive()
        ours.close()
        engines.close()


def test_an_idle_loop_waits_for_messages_and_does_not_spin(
    core: Counted, parent: Wire[FromEngine, ToEngine]
) -> None:
    before = None
    for number in range(50):
        parent.send(Ping(number))
        pong = parent.receive()
        assert isinstance(pong, Pong)
        assert pong.number == number
        before = core.looks if before is None else before
    # stats look once, the loop twice a message
    assert core.looks - before <= 50 * 3


def test_what_the_core_refuses_is_told_once_and_the_others_go_on(
    parent: Wire[FromEngine, ToEngine],
) -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    refused = EngineRequest(1, [5] * 130, params)  # of at most 120 tokens
    aborted, served = (EngineRequest(uid, [5, 6], params) for uid in (2, 3))
    parent.send(AddRequests([refused, aborted, served]))
    parent.send(AbortRequests([2, 99]))
    outputs = []
    while not any(output.uid == 3 and output.finished for output in outputs):
        said = parent.receive()
        assert isinstance(said, StepOutputs)
        outputs += said.outputs
    parent.send(Ping(7))
    assert isinstance(parent.receive(), Pong)  # nothing else was on its way
    assert [o.error and o.error[0] for o in outputs if o.uid == 1] == ["INVALID_ARG"]
    assert not any(output.finished for output in outputs if output.uid == 2)
    assert sum(len(output.token_ids) for output in outputs if output.uid == 3) == 2
