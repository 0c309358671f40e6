"""Write, find, verify and rotate checkpoints, wherever they are stored."""
