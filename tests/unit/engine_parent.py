"""A parent to be killed or stopped: `engine_parent.py loading|serving|forgetful [HOW]`.

Says its engine's pid on a line of standard output, while that loads or when it serves; with HOW the
engine is a broken one. Then, unless it is forgetful, it serves one more request for the next line
of standard input, and says how often it has restarted the engine.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from inferx.engine import spawn
from inferx.engine.sampling import SamplingParams
from running_engine import Outputs, engine_process, engine_processes, make_client, wait_until

kind, *how = sys.argv[1:]
client = make_client(heartbeat_timeout=0.5 if kind == "serving" and not how else 30)
if how:
    spawn.COMMAND = [sys.executable, str(Path(__file__).with_name("broken_engine.py")), *how]
if kind == "loading":
    threading.Thread(target=client.start, daemon=True).start()
    directory = Path(tempfile.gettempdir())
    wait_until(lambda: len(engine_processes()) == 1 and not any(directory.iterdir()))
else:
    client.start()
    outputs = Outputs()
    uids = client.submit([1], [SamplingParams(max_tokens=8000)] * 3, outputs)
    if not how:
        outputs.wait_for_first(uids)
print(engine_process().pid, flush=True)
if kind != "forgetful" and sys.stdin.readline():
    (uid,) = client.submit([1], [SamplingParams(max_tokens=3)], outputs)
    outputs.wait_for_last([uid])
    print(client.num_restarts, flush=True)
