"""The journal of a run: what its lines can say, how one is read, and the file."""
