"""Keep the chief's newest snapshot on another machine, and restore it from there."""
