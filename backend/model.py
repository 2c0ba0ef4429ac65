"""What Triton loads for `backend: "inferx"`."""

from inferx.triton.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
