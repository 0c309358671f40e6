"""Holds over machines: under `--consistent-snapshots`, tasks on other machines stand between two steps while the chief captures."""
