"""A transfer gets every piece of a snapshot once and never requests more than a window."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.ipc.bulk import transfer as frames
from procsv.ipc.bulk.transfer import (
    AGAIN_S,
    BYTES_MAX,
    PIECE_BYTES,
    SILENCE_S_MAX,
    WINDOW_PIECES,
    Transfer,
    TransferPiece,
)


def run(size: int, order: random.Random) -> list[TransferPiece]:
    """Yield the pieces in any order until the transfer is complete."""
    transfer, under_way, came = Transfer(size, 0.0), list[TransferPiece](), list[TransferPiece]()
    while not transfer.is_complete:
        under_way += transfer.next_pieces(0.0)
        assert 0 < len(under_way) <= WINDOW_PIECES
        piece = under_way.pop(order.randrange(len(under_way)))
        assert transfer.came(piece.offset, piece.size, 0.0)
        came.append(piece)
    assert transfer.next_pieces(0.0) == under_way == []
    return came


@given(st.integers(1, 30 * PIECE_BYTES), st.randoms())
def test_every_byte_is_taken_once_in_whatever_order_the_pieces_come(size: int, order: random.Random) -> None:
    came = sorted(run(size, order), key=lambda piece: piece.offset)

    assert [piece.offset for piece in came] == list(range(0, size, PIECE_BYTES))
    assert sum(piece.size for piece in came) == size
    assert all(0 < piece.size <= PIECE_BYTES for piece in came)


def test_a_piece_that_is_repeated_unrequested_or_of_another_size_is_dropped() -> None:
    transfer = Transfer(3 * PIECE_BYTES, 0.0)
    first, *_ = transfer.next_pieces(0.0)
    assert not transfer.came(first.offset, first.size - 1, 0.0)
    assert not transfer.came(PIECE_BYTES // 2, PIECE_BYTES, 0.0)
    assert not transfer.came(10 * PIECE_BYTES, PIECE_BYTES, 0.0)
    assert transfer.come_bytes == 0

    assert transfer.came(first.offset, first.size, 0.0)
    assert not transfer.came(first.offset, first.size, 0.0)
    assert transfer.come_bytes == PIECE_BYTES


def test_after_a_silence_missing_pieces_are_requested_again_and_then_the_peer_counts_as_gone() -> None:
    transfer = Transfer(20 * PIECE_BYTES, 0.0)
    asked = transfer.next_pieces(0.0)
    assert transfer.came(asked[0].offset, asked[0].size, 1.0)
    assert transfer.next_pieces(1.0) == [TransferPiece(8 * PIECE_BYTES, PIECE_BYTES)]
    assert transfer.next_pieces(1.0 + AGAIN_S - 0.1) == []

    again = transfer.next_pieces(1.0 + AGAIN_S)
    assert again == [*asked[1:], TransferPiece(8 * PIECE_BYTES, PIECE_BYTES)]
    assert transfer.next_pieces(1.0 + AGAIN_S) == [], "once"
    assert not transfer.is_silent(1.0 + SILENCE_S_MAX - 0.1)
    assert transfer.is_silent(1.0 + SILENCE_S_MAX)


@pytest.mark.parametrize("size", [0, -1, BYTES_MAX + 1])
def test_an_impossible_snapshot_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a snapshot of"):
        Transfer(size, 0.0)


def test_frames_are_parsed_as_they_were_written_and_others_are_rejected() -> None:
    token, piece = b"t" * frames.TOKEN_BYTES, TransferPiece(7 * PIECE_BYTES, 12)
    assert frames.read_request(frames.request(token, piece)) == (token, piece)
    assert frames.read_part(frames.part(7, b"data")) == (7, b"data")

    request, part = frames.request(token, piece), frames.part(7, b"data")
    for wrong in ([], [b""], [token], [token[1:], request[1]], [token, b"1"], [*request, b""]):
        assert frames.read_request(wrong) is None
    assert frames.read_request(frames.request(token, TransferPiece(0, PIECE_BYTES + 1))) is None
    assert frames.read_request(frames.request(token, TransferPiece(BYTES_MAX + 1, 1))) is None
    for wrong in ([], [frames.GONE], [part[0]], [b"1", part[1]], [part[0], b"dat"], [*part, b""]):
        assert frames.read_part(wrong) is None


def test_requests_stay_within_the_rate_and_all_pieces_come_in_the_end() -> None:
    rate = 2 * PIECE_BYTES  # a second
    transfer, come, now_s = Transfer(10 * PIECE_BYTES, 0.0, rate), 0, 0.0
    while not transfer.is_complete:
        for piece in transfer.next_pieces(now_s):
            assert transfer.came(piece.offset, piece.size, now_s)
            come += piece.size
        assert come <= PIECE_BYTES * 2 + rate * now_s
        now_s += 0.1
        assert now_s < 6.0
    assert come == 10 * PIECE_BYTES
    assert now_s > 4.0


def test_a_client_that_waits_until_it_may_request_loses_no_time_and_never_spins() -> None:
    rate, look_s = 100 * PIECE_BYTES, 0.1
    transfer, now_s, rounds = Transfer(10 * PIECE_BYTES, 0.0, rate), 0.0, 0
    while not transfer.is_complete:
        pieces = transfer.next_pieces(now_s)
        assert len(pieces) <= 1, "as soon as it is due"
        for piece in pieces:
            assert transfer.came(piece.offset, piece.size, now_s)
        now_s, rounds = now_s + transfer.pause_s(now_s, look_s) + 1e-6, rounds + 1
    assert (now_s < 0.11 + look_s, rounds <= 12) == (True, True)
    free = Transfer(10 * PIECE_BYTES, 0.0)
    assert len(free.next_pieces(0.0)) == WINDOW_PIECES
    assert free.pause_s(0.0, look_s) == look_s, "then something comes"
