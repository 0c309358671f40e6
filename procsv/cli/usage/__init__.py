"""Usage of the command line: long helps in groups, and completion in a shell."""
