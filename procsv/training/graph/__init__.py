"""The graph session as a source of state: capture, the Saver's ops, views, restore."""
