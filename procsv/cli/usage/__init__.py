"""Show grouped help, and complete commands in a shell."""
