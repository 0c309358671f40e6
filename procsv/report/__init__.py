"""The account of a run: what its journal says, as figures, as text and as a page."""
