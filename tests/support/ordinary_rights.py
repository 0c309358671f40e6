"""`procsv launch` without the right to write where modes forbid it, which root has: so that read-only is read-only.

`launched(logdir, *args, launcher=ORDINARY_RIGHTS)`.  For anybody else it changes nothing.
"""

import sys

_DROP = """
import ctypes, os, sys
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
    sys.exit(f"PR_CAPBSET_DROP: {os.strerror(ctypes.get_errno())}")
os.execv(sys.executable, [sys.executable, "-m", "procsv", "launch", "--logdir", *sys.argv[1:]])
"""
ORDINARY_RIGHTS = (sys.executable, "-c", _DROP)  # of a process that root starts, only what is dropped here is lost
