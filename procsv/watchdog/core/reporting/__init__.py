"""Reports of a run: what people and a service manager are told of it."""
