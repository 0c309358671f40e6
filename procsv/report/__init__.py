"""Account for the time of a run, from its journal: as data, as text and as a page."""
