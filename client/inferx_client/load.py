"""A closed loop from a machine that has the client alone, as JSON; `inferx bench` does more.

python -m inferx_client.load --url 127.0.0.1:8001 --model smollm2 --concurrency 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from inferx_client.bench.errors import BenchError
from inferx_client.bench.loads import concurrency_sweep
from inferx_client.bench.prompts import Request
from inferx_client.bench.run import run_loads
from inferx_client.bench.target import Sending, triton_target


async def run_load(
    url: str,
    model: str,
    prompts: Sequence[str],
    *,
    requests: int,
    concurrency: int,
    max_tokens: int,
    ignore_eos: bool,
) -> dict[str, Any]:
    """The point of a run's JSON (bench/report.py) for `requests`, the prompts in turn."""
    [load] = concurrency_sweep(
        [concurrency],
        lambda seed: lambda index: Request(prompts[index % len(prompts)], max_tokens),
        count=requests,
        seconds=None,
        warm_up=0,
    )
    async with triton_target(url, model, Sending(ignore_eos=ignore_eos)) as target:
        run = await run_loads(target, [load], title="load", settings={})
    return run.as_json()["points"][0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inferx_client.load", description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="Triton's gRPC endpoint")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", action="append", help="repeatable; they are taken in turn")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ignore-eos", action="store_true", help="always max-tokens tokens")
    given = parser.parse_args(arguments)
    load = run_load(
        given.url,
        given.model,
        given.prompt or ["Once upon a time"],
        requests=given.requests,
        concurrency=given.concurrency,
        max_tokens=given.max_tokens,
        ignore_eos=given.ignore_eos,
    )
    try:
        point = asyncio.run(load)
    except BenchError as error:
        parser.exit(1, f"{error}\n")
    print(json.dumps(point))
    return 1 if point["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
