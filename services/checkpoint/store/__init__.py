"""Write, find, verify and rotate checkpoints; one protocol hides where they are stored."""
