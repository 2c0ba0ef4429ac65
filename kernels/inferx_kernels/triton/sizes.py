"""Sizes of launches, on the host: Triton's own functions for it cost some 10 microseconds a call,
which a step pays hundreds of times."""

from __future__ import annotations


def cdiv(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`, which is positive."""
    return 1 << (number - 1).bit_length()
