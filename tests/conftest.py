"""Triton reads TRITON_INTERPRET when it is first imported, which torch or transformers may do."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
