"""What one request looked like from the client's side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Timing:
    """Moments are seconds of time.perf_counter.

    `responses` and `tokens` go together: when a response arrived, and how many tokens it brought.
    """

    started: float  # when it was sent
    scheduled: float | None = None  # when it should have been sent; None in a closed loop
    responses: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    input_tokens: int | None = None  # as the server counts
    ended: float = 0.0
    error: str | None = None  # its kind: a Triton status, "HTTP 429", …

    @property
    def output_tokens(self) -> int:
        return sum(self.tokens)

    @property
    def first_token(self) -> float | None:
        """When the first token arrived."""
        pairs = zip(self.responses, self.tokens, strict=True)
        return next((moment for moment, tokens in pairs if tokens), None)

    @property
    def time_to_first_token(self) -> float | None:
        first = self.first_token
        return None if first is None else first - self.started

    @property
    def latency(self) -> float:
        """From sending to the last response."""
        return self.ended - self.started

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds of a token after the first; None for fewer than two tokens."""
        first, count = self.first_token, self.output_tokens
        return None if first is None or count < 2 else (self.ended - first) / (count - 1)

    def gaps(self) -> Iterator[tuple[float, int]]:
        """Seconds a token, and tokens, of each response after the first that brought any."""
        last = None
        for moment, tokens in zip(self.responses, self.tokens, strict=True):
            if not tokens:
                continue
            if last is not None:
                yield (moment - last) / tokens, tokens
            last = moment

    def spread(self, total: int) -> None:
        """Shares `total` tokens among the responses with text, for servers that count at the end.

        The first ones get the remainder; a response that brought no text keeps its 0.
        """
        places = [index for index, tokens in enumerate(self.tokens) if tokens]
        if not places:
            return
        share, rest = divmod(total, len(places))
        for rank, index in enumerate(places):
            self.tokens[index] = share + (rank < rest)
