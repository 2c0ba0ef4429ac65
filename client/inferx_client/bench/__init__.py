"""Load tests: what a server's streams look like under a given load.

The road of a run: prompts and arrivals (`prompts`, `workloads`, `traces`, `arrivals`) are sent to
a `target` by `measure`, which brings `Timing`s; `statistics` makes figures of them, and `report`
JSON, CSV and a page with pictures. Needs tritonclient[grpc] alone, and httpx2 for an OpenAI
endpoint.
"""

from inferx_client.bench.errors import BenchError

__all__ = ["BenchError"]
