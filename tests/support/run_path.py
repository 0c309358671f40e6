"""`python -m tests.support.run_path FILE ARGS…`: as `python FILE ARGS…`, for what starts modules alone."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
