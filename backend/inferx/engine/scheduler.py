"""Scheduler: asynchronous continuous batching. What the next step does, and what a result means.

`plan()` may be called again before the result of its last plan is known: a token that a planned
row will sample counts at once, only its id is missing. So a step never waits for the host, at
the price that a request which turns out to have stopped may have one row (with deeper overlap,
one a step) too many in flight; what comes of such a row is dropped.

Pure Python on plain data: the tensors are the runner's, the pages' numbers the pool's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from itertools import islice
from random import Random
from time import monotonic

from inferx.engine.draft import Draft
from inferx.engine.fitting import check_fits, with_max_tokens
from inferx.engine.messages import EngineRequest, EngineStats, RequestOutput, RequestStart
from inferx.engine.plan import NewRow, Plan, StepResult
from inferx.engine.request import Request, Status
from inferx.engine.running import RunningList
from inferx.engine.waiting import WaitingQueue
from inferx.errors import InvalidArgument
from inferx.memory.block_table import BlockTable
from inferx.memory.pool import PagePool


class Scheduler:
    """Owns the requests' states, and decides who holds which pages and slots.

    `pool` is the scheduler's alone. `max_num_batched_tokens` is the budget of one step, decodes,
    prefill chunks and all; slots are numbered 0..max_num_seqs-1. `seed` starts the generator of
    seeds for requests that bring none. `clock` is in seconds.
    """

    def __init__(
        self,
        *,
        pool: PagePool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: Collection[int],
        seed: int = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._eos_token_ids = frozenset(eos_token_ids)
        self._seeds = Random(seed)

        self._requests: dict[int, Request] = {}  # by uid, until they end
        self._num_arrived = 0
        self._waiting = WaitingQueue()
        self._prefilling = RunningList()
        self._decoding = RunningList()
        self._free_slots = list(range(max_num_seqs))
        heapify(self._free_slots)
        self._in_flight: deque[list[Request]] = deque()  # a plan's sampling rows belong to these

        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    @property
    def num_in_flight(self) -> int:
        """Plans made whose result has not been brought to `update`."""
        return len(self._in_flight)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._prefilling) + len(self._decoding),
            waiting=len(self._waiting),
            free_blocks=self._pool.num_free,
            cached_blocks=self._pool.num_cached,
            used_blocks=self._pool.num_used,
            steps=self._num_steps,
            prompt_tokens=self._num_prompt_tokens,
            generated_tokens=self._num_generated_tokens,
            prefix_cache_queries=self._prefix_queries,
            prefix_cache_hits=self._prefix_hits,
            preemptions=self._num_preemptions,
        )

    # Requests come and go

    def add(self, request: EngineRequest) -> None:
        """Raises InvalidArgument for a request that could never be served to its end."""
        if request.uid in self._requests:
            raise InvalidArgument(f"request {request.uid} exists already")
        request = with_max_tokens(request, self._pool, self._max_model_len)
        added = Request(
            request,
            BlockTable(self._pool, request.sampling.cache_salt),
            arrival=self._num_arrived,
            max_model_len=self._max_model_len,
            eos_token_ids=self._eos_token_ids,
            arrived_at=self._clock(),
        )
        check_fits(added, self._pool, self._max_model_len)
        self._num_arrived += 1
        self._requests[added.uid] = added
        self._waiting.push(added)

    def abort(self, uid: int) -> None:
        """Ends a request in whatever state it is; its slot and pages go to the next plan."""
        request = self._requests.get(uid)
        if request is not None:
            self._end(request)

    def _end(self, request: Request) -> None:
        del self._requests[request.uid]
        if request.status is Status.WAITING:
            self._waiting.remove(request)
        elif request.status is not Status.DRAINING:
            self._stop_running(request)
        request.status = Status.ENDED

    def _stop_running(self, request: Request) -> None:
        """Takes slot and pages back. Plans in flight may use them still: they come before any
        plan that can give them away."""
        running = self._decoding if request.status is Status.DECODING else self._prefilling
        running.discard(request)
        heappush(self._free_slots, request.slot)
        request.slot = -1
        request.blocks.register(request.token_ids, request.num_computed_tokens)
        request.blocks.release()

    # A step is planned

    def plan(self) -> Plan | None:
        """Decodes, then running prefills, then admissions, as far as the token budget goes.

        None when nothing can run before a result that is in flight, or at all.
        """
        draft = Draft(self._max_num_batched_tokens)
        self._plan_decodes(draft)
        self._plan_prefills(draft)
        if not draft.preempted:
            self._plan_admissions(draft)
        return self._finish(draft) if draft.slots else None

    def _plan_decodes(self, draft: Draft) -> None:
        """One token a request, in their order.

        A prefill under way keeps a token of the budget: it was admitted because decodes had left
        one, and no other request becomes a decode before it.
        """
        slots, starts = draft.slots, draft.starts
        # A preemption cuts the list behind the request that is being planned, or at it.
        for request in islice(self._decoding, draft.budget):
            start = request.num_computed_tokens
            if start >= request.blocks.capacity and not self._reserve(request, draft):
                break
            slots.append(request.slot)
            starts.append(start)
            request.num_computed_tokens = start + 1
            request.num_tokens = num_tokens = start + 2
            if num_tokens == request.max_num_tokens:
                draft.complete.append(request)
        draft.end_decodes(self._decoding[: len(slots)])

    def _plan_prefills(self, draft: Draft) -> None:
        for request in self._prefilling.copy():
            if draft.budget == 0:
                return
            self._plan_chunk(request, draft)

    def _plan_admissions(self, draft: Draft) -> None:
        """The first in order, or nobody: who comes later must not take what the first waits for."""
        while draft.budget > 0 and self._free_slots:
            request = self._waiting.first()
            if request is None or not self._admit(request, draft):
                return
            self._plan_chunk(request, draft)

    def _admit(self, request: Request, draft: Draft) -> bool:
        """Slot and pages for all tokens that the request has.

        Not yet, if a token of it is in flight (it was preempted), if the pages that would remain
        are fewer than the running requests, of which each will soon grow by one (it would only be
        preempted again), or if this plan computes a prefix that it can share from the next on.
        """
        if request.num_tokens != len(request.token_ids):
            return False
        num_cached = request.blocks.open(
            request.token_ids,
            spare=len(self._decoding) + len(self._prefilling),
            unreadable=draft.fresh_pages,
        )
        if num_cached is None:
            return False
        self._waiting.pop()
        self._prefilling.add(request)
        request.status = Status.PREFILLING
        request.slot = heappop(self._free_slots)
        request.num_computed_tokens = num_cached
        if request.num_admissions == 0:
            request.admitted_at = self._clock()
            request.num_cached_tokens = num_cached
            self._count_prompt(request)
        request.num_admissions += 1
        if request.seed is None:
            request.seed = self._seeds.getrandbits(63)
        draft.new_rows.append(
            NewRow(
                request.slot,
                request.token_ids.copy(),
                request.num_prompt_tokens,
                request.sampling,
                request.seed,
            )
        )
        draft.block_updates.append((request.slot, 0, request.blocks.pages.copy()))
        return True

    def _count_prompt(self, request: Request) -> None:
        self._num_prompt_tokens += request.num_prompt_tokens
        if self._pool.hasher is not None:
            self._prefix_queries += request.num_prompt_tokens
            self._prefix_hits += request.num_computed_tokens

    def _plan_chunk(self, request: Request, draft: Draft) -> None:
        """As many of the request's tokens as the budget has; after the last one it decodes."""
        start = request.num_computed_tokens
        num_tokens = min(request.num_tokens - start, draft.budget)
        request.num_computed_tokens = start + num_tokens
        samples = request.num_computed_tokens == request.num_tokens
        draft.add_chunk(request.slot, start, num_tokens, samples=samples)
        draft.fresh_pages.update(
            request.blocks.register(request.token_ids, request.num_computed_tokens)
        )
        if samples:
            draft.sampling.append(request)
            request.num_tokens += 1
            self._prefilling.discard(request)
            self._decoding.add(request)
            request.status = Status.DECODING
            if request.num_tokens == request.max_num_tokens:
                draft.complete.append(request)

    def _reserve(self, request: Request, draft: Draft) -> bool:
        """Room for the request's next token, if need be by preempting the last in order.

        False when the request itself was the last.
        """
        while (pages := request.blocks.reserve(request.num_tokens)) is None:
            last = self._last_running()
            self._preempt(last)
            draft.preempted = True
            if last is request:
                return False
        first = len(request.blocks.pages) - len(pages)
        draft.block_updates.append((request.slot, first, pages))
        return True

    def _last_running(self) -> Request:
        """The lowest priority's newest."""
        last = [running[-1] for running in (self._decoding, self._prefilling) if running]
        return max(last, key=lambda request: request.order)

    def _preempt(self, request: Request) -> None:
        """Back into the queue without pages; what is not cached by then is computed again."""
        self._stop_running(request)
        request.num_computed_tokens = 0
        request.status = Status.WAITING
        self._waiting.push(request)
        self._num_preemptions += 1

    def _finish(self, draft: Draft) -> Plan:
        for request in draft.complete:
            self._stop_running(request)
            request.status = Status.DRAINING
        self._in_flight.append(draft.sampling)
        self._num_steps += 1
        return draft.plan(self._num_steps)

    # A result comes in

    def update(self, result: StepResult) -> list[RequestOutput]:
        """Takes the result of the oldest plan that has none yet.

        A row may bring several tokens (speculative decoding): then the runner has computed all
        but the last of them, into pages that were reserved for it, and no later row of the
        request is in flight.
        """
        outputs = []
        ended = Status.ENDED
        rows = zip(self._in_flight.popleft(), result.token_ids, result.logprobs, strict=True)
        for request, tokens, logprobs in rows:
            if request.status is ended:  # aborted, or stopped by an earlier token
                continue
            if len(tokens) > 1:
                taken = request.take_several(tokens)
                tokens, logprobs = tokens[:taken], logprobs and logprobs[:taken]
            request.token_ids += tokens
            num_known = len(request.token_ids)
            finish_reason = request.finish_reason(tokens[-1], num_known)
            if finish_reason is not None:
                self._end(request)
            elif num_known > request.blocks.register_above:
                request.blocks.register(request.token_ids, request.num_computed_tokens)
            self._num_generated_tokens += len(tokens)
            stop_token_id = tokens[-1] if finish_reason == "stop" else None
            start = None if request.has_started else self._start(request)
            outputs.append(
                RequestOutput(
                    request.uid, tokens, finish_reason, stop_token_id, logprobs, None, start
                )
            )
        return outputs

    def _start(self, request: Request) -> RequestStart:
        request.has_started = True
        return RequestStart(
            queue=request.admitted_at - request.arrived_at,
            prefill=self._clock() - request.admitted_at,
            cached_tokens=request.num_cached_tokens,
        )
