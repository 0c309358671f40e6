"""Networks of a test's own on this machine: a namespace for each launch, with a name, joined by a bridge to which nothing else is connected.

Used by own_machines.py.  It takes the rights of root.  Killed: bridge and namespaces stay (`ip link`, `ip netns`), and are nobody's.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator

TOOLS = ("ip", "nsenter")
NETWORK = "10.213.0"  # of the namespaces alone: nothing of this machine has an address there


class OwnNetwork:
    def __init__(self, number: int, prefix: str) -> None:
        """`prefix`: of the names that it has on this machine."""
        self.address = f"{NETWORK}.{number}"
        self.name, self._cable = f"{prefix}-{number}", f"{prefix}.{number}"

    def connect(self, bridge: str) -> None:
        """CalledProcessError where that does not go."""
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
        """The file that stands for it."""
        return f"/run/netns/{self.name}"

    @property
    def launcher(self) -> tuple[str, ...]:
        """What runs a command there, in front of it; the process is that of the command."""
        return ("nsenter", f"--net={self.namespace}")

    def cut(self) -> None:
        """Nothing that is sent there arrives, and nothing reaches it; nobody is told."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    def close(self) -> None:
        for words in (("link", "del", self._cable), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):  # of one that was not made
                _ip(*words)


@contextlib.contextmanager
def own_networks(count: int) -> Iterator[list[OwnNetwork]]:
    """CalledProcessError where they cannot be made."""
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
    """Why none can be made here; "" if they can."""
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
