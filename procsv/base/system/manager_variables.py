"""Variables by which a service manager (systemd) speaks with the process that it has started."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # they are the watchdog's own: no child gets them


def without_manager(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a child: what it said to the manager would pass for ours."""
    return {name: value for name, value in environment.items() if name not in VARIABLES}
