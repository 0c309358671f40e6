"""Detect hangs of trainers and services, and end hung processes in escalating steps."""
