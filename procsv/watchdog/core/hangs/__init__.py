"""Hang detection: liveness of trainers and services, and the escalation that ends a process."""
