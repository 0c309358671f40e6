"""The graph session as a source of state: capture, the Saver's ops, views, restore."""

import logging

logging.getLogger("procsv").parent = logging.getLogger("tensorflow")  # its verbosity and handlers hold for ours, too
