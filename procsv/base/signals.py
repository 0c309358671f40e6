"""Define the signals to which procsv gives a meaning of its own."""

from __future__ import annotations

import signal
from enum import Enum, auto

# These are later real-time signals, because schedulers use SIGUSR1 and SIGUSR2, and glibc the first real-time ones.
# If several signals are pending when a thread wakes up, the handler of the highest number runs first.  So the main
# thread's stack is written before all stacks, and both are written before SIGABRT ends the process.
DUMP_SIGNAL = signal.SIGRTMIN + 5  # asks a process for the stacks of its threads
MAIN_DUMP_SIGNAL = signal.SIGRTMIN + 6  # asks its main thread for its own stack
# These are sent to the main thread; otherwise any thread of the process could take them.
OF_THE_MAIN_THREAD = (DUMP_SIGNAL, MAIN_DUMP_SIGNAL, signal.SIGABRT)
# Tells a standby that it is needed, so that it stops yielding the cores.  A process without a handler ignores it.
HURRY_SIGNAL = signal.SIGURG


class Default(Enum):
    """What a signal to the supervisor means if the program does not handle it."""

    STOP = auto()  # save and stop the run; a second one ends the program immediately
    STOP_NOW = auto()  # end the program immediately; its newest snapshot is kept
    GO_ON = auto()  # report it in one line and go on


# These stop the run, and reach the program as SIGTERM does.
STOPS = (signal.SIGINT, signal.SIGTERM)
# These go to the program if it has a handler for them.  Each would end a process that has none.
PASSED_ON = {
    signal.SIGHUP: Default.STOP,  # the terminal was closed
    signal.SIGQUIT: Default.STOP_NOW,  # Ctrl-\\: the user is out of patience
    signal.SIGUSR1: Default.GO_ON,  # Slurm's --signal goes to every process of a job step
    signal.SIGUSR2: Default.GO_ON,
    signal.SIGXCPU: Default.GO_ON,  # Grid Engine's and LSF's notice
}
# A program sends these to itself, by a timer or a descriptor.  So the supervisor ignores them.
IGNORED = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR)


def default_of(number: int) -> Default:
    """Returns what a signal that may be passed on means if the program has no handler for it."""
    return PASSED_ON.get(signal.Signals(number), Default.GO_ON)


def is_handled(handles: int, number: int) -> bool:
    """Whether the signal may be passed on, and `handles` in a heartbeat includes it."""
    return number in PASSED_ON and bool(handles >> number & 1)
