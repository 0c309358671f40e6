"""Define the exit codes of `procsv launch`, and of the programs that it runs."""

DONE = 0
USAGE = 2  # a wrong command line, from procsv or from argparse in a program
GAVE_UP = 70  # the run cannot go on; standard error says why
LOGDIR_UNUSABLE = 73  # another run owns the logdir, or it cannot be written
# From launch: stopped after a durable checkpoint.  From a program: state saved; restart without counting a failure.
RESUMABLE = 75
MISCONFIGURED = 78
INTERRUPTED = 130  # by SIGINT, as in a shell

PERMANENT = {MISCONFIGURED: "configuration error", 126: "cannot be executed", 127: "not found"}  # of a program
