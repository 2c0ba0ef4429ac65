"""Can this interpreter carry InferX? Status 0, or 1 and a sentence that says what to install.

ci/setup runs it with interpreters of any age, so its syntax stays old.
"""

import sys

WRONG_VERSION = """\
Python 3.10, 3.11 or 3.12 is needed, and {0} is Python {1}: the Triton server that is
installed here needs numpy below 2, which has no build for Python 3.13 and later.
Bring one in one of these ways, then run the command again:
  Debian 12:     sudo apt install python3.11 python3.11-venv libpython3.11
  Ubuntu 24.04:  sudo apt install python3.12 python3.12-venv libpython3.12
  uv:            uv python install 3.12
                 then put PYTHON=$(uv python find 3.12) in front of the command
  pyenv:         PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.12
                 then put PYTHON=$(pyenv prefix 3.12)/bin/python3 in front of the command"""


def complaint() -> "str | None":
    version = "{}.{}".format(*sys.version_info[:2])
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        return WRONG_VERSION.format(sys.executable, version)
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            f"{sys.executable} has no venv module: "
            f"install it with 'sudo apt install python{version}-venv'."
        )
    sys.path.insert(0, "backend")
    from inferx.triton.installation import find_libpython, missing_libpython

    return None if find_libpython() else missing_libpython()


if __name__ == "__main__":
    problem = complaint()
    if problem:
        print(problem)
    sys.exit(1 if problem else 0)
