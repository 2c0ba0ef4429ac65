"""When the requests of an open loop are sent."""

from __future__ import annotations

import random

from inferx_client.bench.errors import BenchError

MOST = 1_000_000  # requests of a load


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Moments in [0, seconds) of a Poisson process with `rate` arrivals a second.

    The gaps are exponential with the mean 1 / rate. Raises BenchError for a rate that is not
    positive, or would be more than MOST requests.
    """
    if not rate > 0:
        raise BenchError(f"a rate of {rate:g} requests a second: it has to be above 0")
    if rate * seconds > MOST:
        raise BenchError(
            f"a rate of {rate:g} requests a second for {seconds:g} s: at most {MOST} requests"
        )
    draw = random.Random(seed)
    moments: list[float] = []
    moment = draw.expovariate(rate)
    while moment < seconds:
        moments.append(moment)
        moment += draw.expovariate(rate)
    return moments
