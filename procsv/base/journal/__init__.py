"""Keep the journal of a run: define its entries, decode its lines, and write and read the file."""
