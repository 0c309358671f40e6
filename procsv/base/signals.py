"""Signals to which procsv gives a meaning of its own."""

from __future__ import annotations

import signal

# Schedulers use SIGUSR1 and SIGUSR2, glibc the first real-time signals.  Of several signals that a thread finds when it is woken, the
# handler of the highest number runs first: the main thread's stack is written before all stacks are, and these before SIGABRT ends it.
DUMP_SIGNAL = signal.SIGRTMIN + 5  # asks a process for the stacks of its threads
MAIN_DUMP_SIGNAL = signal.SIGRTMIN + 6  # asks its main thread for its own stack
# Sent to the main thread: any thread of a process that is woken would take them else.
OF_THE_MAIN_THREAD = (DUMP_SIGNAL, MAIN_DUMP_SIGNAL, signal.SIGABRT)
