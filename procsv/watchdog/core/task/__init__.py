"""One task of a run: its lifecycle, its attempts and how far they come, what is kept of them, and its standby."""
