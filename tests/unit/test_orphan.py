"""A stub ends with the server that started it, not with whoever is its parent now."""

from __future__ import annotations

import pytest
from inferx.triton.orphan import server_of

STUB = b"/backends/python/triton_python_backend_stub"
OF_A_STUB = [STUB, b"model.py", b"region", b"1048576", b"1048576", b"26925", b"/backends/python"]


def test_the_server_is_the_one_that_the_arguments_name() -> None:
    assert server_of(OF_A_STUB, parent=1) == 26925


@pytest.mark.parametrize(
    "arguments",
    [[], [b"python3", b"-m", b"pytest", b"1", b"2", b"3"], OF_A_STUB[:5], [*OF_A_STUB[:5], b"x"]],
)
def test_of_other_arguments_the_parent_is_taken(arguments: list[bytes]) -> None:
    assert server_of(arguments, parent=77) == 77
