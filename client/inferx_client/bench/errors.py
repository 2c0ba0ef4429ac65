"""What ends a load test before it has figures."""


class BenchError(Exception):
    """A file, an option or a server that a load test cannot use; one sentence."""
