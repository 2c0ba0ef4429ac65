"""TextStream: one choice's token ids to text, up to its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from inferx.engine.messages import FinishReason, RequestOutput
from inferx.engine.plan import TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.errors import Status
from inferx.text.stop import StopScanner
from inferx.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What some outputs of the engine add to a choice.

    `token_ids`, and with them `logprobs`, count every token, also where its text is held back, or
    not shown because it ended the choice. `logprobs` are JSON objects
    `{id: {"logprob", "rank", "decoded_token"}}`, the sampled token first; None: not asked for.
    `cumulative_logprob` is the choice's up to here.
    """

    text: str
    num_tokens: int
    token_ids: list[int]
    logprobs: list[dict[str, Any]] | None
    cumulative_logprob: float | None
    finish_reason: FinishReason | None
    error: tuple[Status, str] | None = None


class TextStream:
    """Detokenizes, finds stop strings and counts, for one choice.

    When a stop string completes, the delta's finish_reason is "stop" while the engine still runs:
    the caller aborts the request there. Outputs that come after the end are ignored.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=params.skip_special_tokens, prompt_token_ids=prompt_token_ids
        )
        self._include_stop = params.include_stop_str_in_output
        self._scanner = (
            StopScanner(params.stop, include=self._include_stop) if params.stop else None
        )
        self._min_tokens = params.min_tokens
        self._cumulative_logprob: float | None = None if params.logprobs is None else 0.0
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(self, outputs: RequestOutput | Sequence[RequestOutput]) -> TextDelta:
        """The delta of one output, or of several at once. The text, the end and the counts are the
        same however the outputs are grouped."""
        if self.finish_reason is not None:
            return TextDelta("", 0, [], None, self._cumulative_logprob, None)
        output = outputs if isinstance(outputs, RequestOutput) else _merged(outputs)
        if self._scanner is None:
            text, token_ids = self._detokenizer.push(self._shown(output)), output.token_ids
        else:
            text, token_ids = self._scan(self._scanner, output)
        self.num_tokens += len(token_ids)
        if output.finish_reason is not None and self.finish_reason is None:
            self.finish_reason = output.finish_reason
            held = self._scanner.flush() if self._scanner else ""
            text += held + self._detokenizer.flush()
        logprobs = self._logprobs(token_ids, output.logprobs)
        return TextDelta(
            text,
            len(token_ids),
            token_ids,
            logprobs,
            self._cumulative_logprob,
            self.finish_reason,
            output.error,
        )

    def _shown(self, output: RequestOutput) -> list[int]:
        """Its tokens without the EOS or stop token that ended it, whose text is not shown."""
        hidden = output.stop_token_id is not None and not self._include_stop
        return output.token_ids[:-1] if hidden else output.token_ids

    def _scan(self, scanner: StopScanner, output: RequestOutput) -> tuple[str, list[int]]:
        """The text released, and the tokens up to the end of the choice. It goes token by token,
        so that a stop string is charged to the token that completed it."""
        pieces = []
        for count, token_id in enumerate(self._shown(output), start=1):
            piece, ended = scanner.push(
                self._detokenizer.push((token_id,)),
                may_stop=self.num_tokens + count > self._min_tokens,
            )
            pieces.append(piece)
            if ended:
                self.finish_reason = "stop"
                return "".join(pieces), output.token_ids[:count]
        return "".join(pieces), output.token_ids

    def _logprobs(
        self, token_ids: list[int], found: list[TokenLogprobs] | None
    ) -> list[dict[str, Any]] | None:
        """The entries of these tokens, which are the first of those that `found` is about."""
        if self._cumulative_logprob is None:
            return None
        entries = []
        for token_id, logprobs in zip(token_ids, found or (), strict=False):
            self._cumulative_logprob += logprobs.logprob
            entries.append(self._entry(token_id, logprobs))
        return entries

    def _entry(self, token_id: int, found: TokenLogprobs) -> dict[str, Any]:
        entry = {str(token_id): self._logprob(token_id, found.logprob, found.rank)}
        for rank, (top_id, logprob) in enumerate(
            zip(found.top_ids, found.top_logprobs, strict=True), start=1
        ):
            entry.setdefault(str(top_id), self._logprob(top_id, logprob, rank))
        return entry

    def _logprob(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {
            "logprob": logprob if math.isfinite(logprob) else None,
            "rank": rank,
            "decoded_token": self._tokenizer.token_text(token_id),
        }


def _merged(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """Consecutive outputs of one request as one."""
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    for output in outputs:
        token_ids += output.token_ids
        logprobs += output.logprobs or ()
    return RequestOutput(
        last.uid, token_ids, last.finish_reason, last.stop_token_id, logprobs, last.error
    )
