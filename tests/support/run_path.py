"""`python -m tests.support.run_path PROGRAM ARGS…`: as `python FILE ARGS…` or `python -m MODULE ARGS…`, for what starts modules alone."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
