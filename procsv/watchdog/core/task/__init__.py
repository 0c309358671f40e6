"""One task of a run: its lifecycle, its attempts and how far they come, and what is kept of them."""
