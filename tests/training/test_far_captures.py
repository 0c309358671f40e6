"""A server's capture arrives unchanged in the slot of a chief on another machine, each tensor in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from procsv.base.errors import PeerError, UserError
from procsv.base.system import failpoints
from procsv.training import servers
from procsv.training.graph.server_capture import FarServer
from procsv.training.servers import (
    PIECE_BYTES,
    CaptureOrder,
    CaptureRefused,
    KeptViews,
    decode_offer,
    encode_offer,
    offsets_of,
)

HELD, IN_PLACE = 1, 0
NOWHERE = Path("/nowhere")  # it has no slot
ARRAYS: list[Any] = [
    np.arange(PIECE_BYTES * 5 // 2, dtype=np.uint8),
    np.zeros([0]),
    np.arange(7, dtype=np.float64),
    np.array(41),
    np.arange(300_001, dtype=np.int16),
]
GAP = 64  # between two tensors in the slot


def order(number: int = 1, owner: str = "one") -> bytes:
    return msgspec.msgpack.encode(CaptureOrder(owner, number, is_far=True))


def layout(arrays: list[Any]) -> tuple[list[tuple[int, int]], int]:
    """Return places in a slot with other tensors between them, and its size."""
    places, at = [], 4096
    for array in reversed(arrays):
        places.append((at, array.nbytes))
        at += array.nbytes + GAP
    return places[::-1], at


def take(kept: KeptViews, number: int = 1, how: int = HELD) -> None:
    places, _ = layout(ARRAYS)
    rows = np.array([(offset, size, how) for offset, size in places], np.int64)
    assert kept.capture_views(order(number), rows, 3, *(array.copy() for array in ARRAYS)) == 41


def copy_all(kept: KeptViews, number: int = 1) -> tuple[list[int], Any]:
    """Return the hashes, and how the capture is fetched."""
    for _ in range(1000):
        answer = kept.copy(order(number))
        if not answer[0]:
            count = len(ARRAYS)
            return answer[1 : 1 + count].view(np.uint64).tolist(), answer[1 + count :]
    raise AssertionError("it never ends")


def fetch(told: Any, hashes: list[int]) -> bytes:
    places, size = layout(ARRAYS)
    slot = bytearray(size)
    FarServer("127.0.0.1", places).fetch(told, hashes, slot)
    return bytes(slot)


@pytest.mark.parametrize("how", [HELD, IN_PLACE])
def test_each_tensor_is_in_its_place_and_nothing_is_anywhere_else(how: int) -> None:
    kept = KeptViews(NOWHERE)
    for number in (1, 2):
        take(kept, number, how)
        hashes, told = copy_all(kept, number)
        assert copy_all(kept, number)[0] == hashes, "asked again, as other servers were not done yet"
        data = fetch(told, hashes)

        places, size = layout(ARRAYS)
        wanted = bytearray(size)
        for (offset, nbytes), array in zip(places, ARRAYS, strict=True):
            wanted[offset : offset + nbytes] = array.tobytes()
        assert data == bytes(wanted)
        assert hashes == [xxhash.xxh3_64_intdigest(array.tobytes()) for array in ARRAYS]


def test_damage_in_transit_is_noticed() -> None:
    kept = KeptViews(NOWHERE)
    take(kept)
    hashes, told = copy_all(kept)
    failpoints.arm("sender.piece=3*off->1*torn")
    try:
        with pytest.raises(PeerError, match=r"127\.0\.0\.1 .* damaged"):
            fetch(told, hashes)
    finally:
        failpoints.disarm("sender.piece")


def test_a_capture_is_fetched_once() -> None:
    kept = KeptViews(NOWHERE)
    take(kept)
    hashes, told = copy_all(kept)
    fetch(told, hashes)
    with pytest.raises(PeerError, match="does not offer"):
        fetch(told, hashes)


def test_a_server_that_cannot_send_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise UserError("no port")

    monkeypatch.setattr(servers, "Sender", none)
    kept = KeptViews(NOWHERE)
    take(kept)
    with pytest.raises(CaptureRefused, match=": no port"):
        copy_all(kept)


def test_an_answer_without_an_offer_is_an_error() -> None:
    with pytest.raises(PeerError, match="has not said"):
        fetch(np.array([8, 1], np.int64), [0] * len(ARRAYS))
    with pytest.raises(PeerError, match="has not said"):
        fetch(np.array([], np.int64), [0] * len(ARRAYS))


def test_an_offer_is_the_same_after_its_encoding() -> None:
    kept = KeptViews(NOWHERE)
    take(kept)
    _, told = copy_all(kept)
    offer = decode_offer(told)
    assert decode_offer(encode_offer(offer)) == offer
    assert offer.size == sum(array.nbytes for array in ARRAYS)
    assert offsets_of([3, 0, 2]) == [0, 3, 3]
    assert offsets_of([]) == []
