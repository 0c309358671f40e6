"""Signals to which procsv gives a meaning of its own."""

from __future__ import annotations

import signal

# Asks a process for the stacks of its threads.  Schedulers use SIGUSR1 and SIGUSR2, glibc the first real-time signals.
DUMP_SIGNAL = signal.SIGRTMIN + 5
