"""What a caller's traceparent says."""

from __future__ import annotations

import pytest
from inferx.observe.request_trace import TraceParent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True)]
)
@pytest.mark.parametrize("later", ["00-{}", "01-{}-more"])
def test_the_last_bit_of_its_flags_says_whether_the_caller_is_traced(
    later: str, flags: str, sampled: bool
) -> None:
    header = later.format(f"{TRACE}-{SPAN}-{flags}")
    assert TraceParent.parse(header) == TraceParent(int(TRACE, 16), int(SPAN, 16), sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_a_header_that_is_none_begins_a_trace_of_its_own(header: str) -> None:
    assert TraceParent.parse(header) is None
