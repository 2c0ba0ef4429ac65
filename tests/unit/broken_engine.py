"""An engine process that goes wrong: `broken_engine.py HOW DIRECTORY PARENT_PID`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from inferx.engine import process
from inferx.engine.synthetic import SyntheticRunner
from inferx.errors import ModelLoadError


def load_forever(config):
    threading.Event().wait()


def load_busily(config):
    while True:  # with the interpreter's lock, as a loader in C may be
        sum(range(10_000_000))


def refuse_to_load(config):
    raise ModelLoadError("model 'x': its folder has no weights")


def fail_to_load(config):
    raise ZeroDivisionError("secret/path")


def exit_while_loading(config):
    os._exit(7)


def run_out_of_memory(config):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_in_the_third_step(config):
    class Failing(SyntheticRunner):
        num_launched = 0

        def launch(self, plan):
            self.num_launched += 1
            if self.num_launched == 3:
                raise RuntimeError("broken on purpose")
            super().launch(plan)

    return Failing(config, None)


def step_forever(config):
    class Stuck(SyntheticRunner):
        def collect(self):
            time.sleep(1e6)

    return Stuck(config, None)


if __name__ == "__main__":
    process._synthetic_runner = globals()[sys.argv.pop(1)]
    process.main()
