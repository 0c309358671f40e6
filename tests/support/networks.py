"""Make networks on this machine: a named namespace for each launch, joined by a bridge that
connects to nothing else.

Used by own_machines.py. It needs root. If it is killed, the bridge and the namespaces stay (`ip
link`, `ip netns`).
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator

TOOLS = ("ip", "nsenter")
NETWORK = "10.213.0"  # used in the namespaces only: this machine has no address there


class OwnNetwork:
    def __init__(self, number: int, prefix: str) -> None:
        """`prefix` begins the names that it has on this machine."""
        self.address = f"{NETWORK}.{number}"
        self.name, self._cable = f"{prefix}-{number}", f"{prefix}.{number}"

    def connect(self, bridge: str) -> None:
        """Join the bridge. Raises CalledProcessError if that is not permitted."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._cable, "master", bridge, "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *words)

    @property
    def namespace(self) -> str:
        """Return the namespace's file."""
        return f"/run/netns/{self.name}"

    @property
    def launcher(self) -> tuple[str, ...]:
        """Return the command prefix that runs a command there. It execs, so the pid is the command's."""
        return ("nsenter", f"--net={self.namespace}")

    def cut(self) -> None:
        """Drop everything to and from this network without notice to either side."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    def close(self) -> None:
        for words in (("link", "del", self._cable), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):  # it was never made
                _ip(*words)


@contextlib.contextmanager
def own_networks(count: int) -> Iterator[list[OwnNetwork]]:
    """Make that many networks. Raises CalledProcessError if they cannot be made."""
    prefix = f"psv{secrets.token_hex(3)}"
    made = [OwnNetwork(number, prefix) for number in range(1, count + 1)]
    _ip("link", "add", prefix, "type", "bridge")
    try:
        _ip("link", "set", prefix, "up")
        for network in made:
            network.connect(prefix)
        yield made
    finally:
        for network in made:
            network.close()
        _ip("link", "del", prefix)


def why_no_networks() -> str:
    """Return why networks cannot be made here, or "" if they can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"networks of their own take {', '.join(missing)} (iproute2, util-linux)"
    try:
        with own_networks(1) as (network,):
            subprocess.run(
                [*network.launcher, "true"], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
    except subprocess.CalledProcessError as error:
        return f"networks of their own take the rights of root: {error.stderr.strip()}"
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
