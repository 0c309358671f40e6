"""Signals to which procsv gives a meaning of its own."""

from __future__ import annotations

import signal
from enum import Enum, auto

# Schedulers use SIGUSR1 and SIGUSR2, glibc the first real-time signals.  Of several signals that a thread finds when it is woken, the
# handler of the highest number runs first: the main thread's stack is written before all stacks are, and these before SIGABRT ends it.
DUMP_SIGNAL = signal.SIGRTMIN + 5  # asks a process for the stacks of its threads
MAIN_DUMP_SIGNAL = signal.SIGRTMIN + 6  # asks its main thread for its own stack
# Sent to the main thread: any thread of a process that is woken would take them else.
OF_THE_MAIN_THREAD = (DUMP_SIGNAL, MAIN_DUMP_SIGNAL, signal.SIGABRT)
# Somebody waits for a standby, which yields the cores no more.  It does nothing to a process that has no handler yet.
HURRY_SIGNAL = signal.SIGURG


class Default(Enum):
    """What a signal to the supervisor means where the program does not handle it."""

    STOP = auto()  # save and stop the run; the second one ends the program at once
    STOP_NOW = auto()  # end the program at once; its newest snapshot is kept
    GO_ON = auto()  # say so in one line, and go on


# These stop the run, and reach the program as SIGTERM does.
STOPS = (signal.SIGINT, signal.SIGTERM)
# These go to the program if it has a handler for them.  Each would end a process that has none.
PASSED_ON = {
    signal.SIGHUP: Default.STOP,  # the terminal was closed
    signal.SIGQUIT: Default.STOP_NOW,  # Ctrl-\\: by somebody who has no patience left
    signal.SIGUSR1: Default.GO_ON,  # Slurm's --signal goes to every process of a job step
    signal.SIGUSR2: Default.GO_ON,
    signal.SIGXCPU: Default.GO_ON,  # Grid Engine's and LSF's notice
}
# A program sends these to itself, by a timer or a descriptor: one to the supervisor has nothing to do with the program.
IGNORED = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR)


def default_of(number: int) -> Default:
    """What a signal that may be passed on means to the run where the program has no handler for it."""
    return PASSED_ON.get(signal.Signals(number), Default.GO_ON)


def is_handled(handles: int, number: int) -> bool:
    """Whether `handles`, of a heartbeat, has that signal, and it may be passed on to the program."""
    return number in PASSED_ON and bool(handles >> number & 1)
