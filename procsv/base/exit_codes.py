"""Exit codes of `procsv launch`, and of the programs that it runs."""

DONE = 0
USAGE = 2  # a wrong command line: procsv's own, and what argparse ends a program with
GAVE_UP = 70  # the run cannot go on; why is on standard error
LOGDIR_UNUSABLE = 73  # another run owns the logdir, or it cannot be written
RESUMABLE = (
    75  # launch: stopped after a durable checkpoint.  A program: checkpointed, start me again at once, free of charge
)
MISCONFIGURED = 78
INTERRUPTED = 130  # by SIGINT, as a shell says it

PERMANENT = {MISCONFIGURED: "configuration error", 126: "cannot be executed", 127: "not found"}  # of a program
