"""Practising the crash before it comes: drills, and a pytest plugin for a program's own tests."""
