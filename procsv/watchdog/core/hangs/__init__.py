"""Detect hangs of trainers and services, and end hung processes with ever stronger signals."""
