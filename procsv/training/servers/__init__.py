"""Parameter servers: their part of the chief's captures, in their own processes."""
