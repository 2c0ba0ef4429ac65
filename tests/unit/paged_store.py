"""A runner without a model: its KV cache holds token ids, and the next token is a function of all
tokens before it, read back through the block table.

So a page that is given away too early, shared wrongly or written by two rows shows up as a wrong
output; and whatever a plan may not do fails an assertion. It keeps what a real runner keeps: a
token pool and a block table by slot, pages, and results that wait to be collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from inferx.engine.plan import Plan, StepResult, TokenLogprobs
from inferx.engine.sampling import SamplingParams

VOCAB_SIZE = 40
EOS_TOKEN_IDS = (0, 1)


def next_token(token_ids: Sequence[int], num_prompt_tokens: int, sampling: SamplingParams) -> int:
    """Every token before it, the seed where the client gives one, and min_tokens' mask decide."""
    state = crc32(repr(list(token_ids)).encode(), sampling.seed or 0)
    masked: set[int] = set()
    if len(token_ids) - num_prompt_tokens < sampling.min_tokens:
        masked = {*EOS_TOKEN_IDS, *sampling.stop_token_ids}
    allowed = [token for token in range(VOCAB_SIZE) if token not in masked]
    return allowed[state % len(allowed)]


def expected_output(
    prompt: list[int], sampling: SamplingParams, max_model_len: int
) -> tuple[list[int], str, int | None]:
    """What a request's output has to be: token ids, finish_reason, stop_token_id."""
    tokens = list(prompt)
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else EOS_TOKEN_IDS)}
    while True:
        token = next_token(tokens, len(prompt), sampling)
        tokens.append(token)
        output = tokens[len(prompt) :]
        if token in stops and len(output) > sampling.min_tokens:
            return output, "stop", token
        if len(output) == sampling.max_tokens or len(tokens) == max_model_len:
            return output, "length", None


@dataclass
class _Row:
    """A slot's state since a request took it."""

    sampling: SamplingParams
    num_prompt_tokens: int
    seed: int
    tokens: list[int]  # the token pool's row
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0


class PagedStore:
    """Runner. `num_drafts` > 0: a sampling row brings up to so many tokens more than one."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_drafts: int = 0,
    ) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.num_drafts = num_drafts
        self.pages: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.rows: dict[int, _Row] = {}
        self.results: deque[StepResult] = deque()
        self.plans: list[Plan] = []

    def launch(self, plan: Plan) -> None:
        self._check_shape(plan)
        self._take_new_rows(plan)
        self._take_block_updates(plan)
        self._check_prefixes(plan)
        written: set[int] = set()
        for slot, start, num_tokens in zip(plan.slots, plan.starts, plan.num_tokens, strict=True):
            pages = self._write(self.rows[slot], start, num_tokens)
            assert written.isdisjoint(pages), "two rows write one page"
            written |= pages
        token_ids, logprobs = [], []
        for slot, sample in zip(plan.slots, plan.samples, strict=True):
            row = self.rows[slot]
            # A row that computes its last token samples; one that does not, cannot.
            assert sample == (row.num_computed == len(row.tokens)), "samples at the wrong token"
            if sample:
                new = self._sample(row)
                token_ids.append(new)
                wanted = row.sampling.logprobs is not None
                logprobs.append([_logprobs(token) for token in new] if wanted else None)
        self.results.append(StepResult(token_ids, logprobs))
        self.plans.append(plan)

    def collect(self) -> StepResult:
        return self.results.popleft()

    def close(self) -> None:
        self.rows.clear()

    def _check_shape(self, plan: Plan) -> None:
        num_rows = len(plan.slots)
        assert num_rows == len(plan.starts) == len(plan.num_tokens) == len(plan.samples) > 0
        assert plan.step == len(self.plans) + 1
        assert len(set(plan.slots)) == num_rows, "a slot has two rows"
        assert all(0 <= slot < self.max_num_seqs for slot in plan.slots)
        assert all(num_tokens > 0 for num_tokens in plan.num_tokens)
        assert sum(plan.num_tokens) <= self.max_num_batched_tokens, "above the token budget"
        assert plan.num_tokens[: plan.num_decodes] == [1] * plan.num_decodes
        assert plan.samples[: plan.num_decodes] == [True] * plan.num_decodes
        assert plan.page_copies == []

    def _take_new_rows(self, plan: Plan) -> None:
        new_slots = [row.slot for row in plan.new_rows]
        assert len(set(new_slots)) == len(new_slots)
        assert set(new_slots) <= set(plan.slots[plan.num_decodes :]), "a new row has no work"
        for new in plan.new_rows:
            assert 0 < new.num_prompt_tokens <= len(new.token_ids)
            assert new.sampling.seed is None or new.seed == new.sampling.seed
            self.rows[new.slot] = _Row(
                new.sampling, new.num_prompt_tokens, new.seed, list(new.token_ids)
            )

    def _take_block_updates(self, plan: Plan) -> None:
        updated = [slot for slot, _, _ in plan.block_updates]
        assert len(set(updated)) == len(updated)
        assert set(updated) <= set(plan.slots)
        for slot, first, pages in plan.block_updates:
            table = self.rows[slot].block_table
            assert first == len(table), "a block table grows at its end"
            assert pages
            table.extend(pages)
            assert len(set(table)) == len(table), "a page is in a block table twice"
            assert all(0 <= page < self.num_blocks for page in pages)

    def _check_prefixes(self, plan: Plan) -> None:
        """What a new row finds computed has to be there before this step writes anything."""
        starts = dict(zip(plan.slots, plan.starts, strict=True))
        for new in plan.new_rows:
            row, start = self.rows[new.slot], starts[new.slot]
            assert start % self.block_size == 0, "a cached prefix is whole pages"
            assert self._read(row, start) == row.tokens[:start], "a cached prefix of other tokens"
            row.num_computed = start

    def _write(self, row: _Row, start: int, num_tokens: int) -> set[int]:
        """Stores the tokens' ids in their pages and returns these pages."""
        assert start == row.num_computed, "positions are not contiguous"
        end = start + num_tokens
        assert end <= len(row.tokens), "a token is computed before it is sampled"
        assert end <= len(row.block_table) * self.block_size, "no page for a token"
        pages = set()
        for position in range(start, end):
            page = row.block_table[position // self.block_size]
            self.pages[page][position % self.block_size] = row.tokens[position]
            pages.add(page)
        row.num_computed = end
        return pages

    def _read(self, row: _Row, num_tokens: int) -> list[int | None]:
        return [
            self.pages[row.block_table[position // self.block_size]][position % self.block_size]
            for position in range(num_tokens)
        ]

    def _sample(self, row: _Row) -> list[int]:
        """One token; with drafts as many as its page has room for, computed but for the last."""
        num_before = len(row.tokens)
        while True:
            tokens = self._read(row, len(row.tokens))
            assert None not in tokens
            row.tokens.append(next_token(tokens, row.num_prompt_tokens, row.sampling))  # type: ignore[arg-type]
            num_sampled = len(row.tokens) - num_before
            if (
                num_sampled > self.num_drafts
                or len(row.tokens) > len(row.block_table) * self.block_size
            ):
                return row.tokens[num_before:]
            self._write(row, len(row.tokens) - 1, 1)


def _logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs(-float(token), 1, [token], [-float(token)])
