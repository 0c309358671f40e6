"""A clock that moves only when a test moves it."""

from __future__ import annotations


class FakeClock:
    """Time that moves only in `advance`. The wall clock is the monotonic time plus a settable offset."""

    def __init__(self, wall_offset_s: float = 1_000_000_000.0) -> None:
        self.now_s = 0.0
        self.wall_offset_s = wall_offset_s

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + self.wall_offset_s

    def advance(self, by_s: float) -> float:
        assert by_s >= 0.0, "monotonic time does not go back"
        self.now_s += by_s
        return self.now_s
