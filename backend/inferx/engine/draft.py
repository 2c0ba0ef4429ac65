"""Draft: a plan in the making."""

from __future__ import annotations

from inferx.engine.plan import NewRow, Plan
from inferx.engine.request import Request


class Draft:
    """Rows are Plan's columns, decodes first; beside them, what the scheduler does once the plan is
    complete."""

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that are left
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.num_tokens: list[int] = []
        self.samples: list[bool] = []
        self.num_decodes = 0
        self.new_rows: list[NewRow] = []
        self.block_updates: list[tuple[int, int, list[int]]] = []
        self.sampling: list[Request] = []  # whose rows sample, in order
        self.complete: list[Request] = []  # planned up to their length now
        self.fresh_pages: set[int] = set()  # registered, but filled by this very plan
        self.preempted = False

    def end_decodes(self, requests: list[Request]) -> None:
        """The rows so far, of which only slots and starts are set, decode for these requests."""
        self.num_decodes = len(requests)
        self.num_tokens = [1] * self.num_decodes
        self.samples = [True] * self.num_decodes
        self.sampling = requests
        self.budget -= self.num_decodes

    def add_chunk(self, slot: int, start: int, num_tokens: int, *, samples: bool) -> None:
        """A row with tokens of a prompt."""
        self.slots.append(slot)
        self.starts.append(start)
        self.num_tokens.append(num_tokens)
        self.samples.append(samples)
        self.budget -= num_tokens

    def plan(self, step: int) -> Plan:
        return Plan(
            step=step,
            slots=self.slots,
            starts=self.starts,
            num_tokens=self.num_tokens,
            samples=self.samples,
            num_decodes=self.num_decodes,
            new_rows=self.new_rows,
            block_updates=self.block_updates,
            page_copies=[],
        )
