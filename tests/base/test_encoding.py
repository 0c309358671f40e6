"""The encoder of all files and messages preserves any text, even with bytes that are not UTF-8."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procsv.base.encoding import (
    decode_json,
    decode_msgpack,
    decode_sealed,
    encode_json,
    encode_msgpack,
    indent_json,
    seal,
)

LATIN = os.fsdecode(b"caf\xe9")
LOOKS_ESCAPED = r"a\udce9 b\u005cudce9 c\u005c d\ud8zz \\udce9"
TEXT = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\\ud89ce50\udce9\ud800\ue000"))) | st.text(
    alphabet="\\u05cde9"
)


class Kept(msgspec.Struct, frozen=True, tag=True):
    text: str
    pair: tuple[str, bytes] = ("", b"")
    by_name: dict[str, str] = {}
    by_number: dict[int, str] = {}


DECODER = msgspec.msgpack.Decoder(Kept)


@given(TEXT)
@example(LATIN)
@example(LOOKS_ESCAPED)
@example("\\" + LATIN[-1] + "\\u" + LATIN[-1] + "005c")
def test_any_text_reads_back_as_it_was_written(text: str) -> None:
    kept = Kept(text, (text, b"\\udce9\xff"), {text: text}, {3: text})
    assert decode_json(encode_json(kept), Kept) == kept
    assert decode_msgpack(encode_msgpack(kept), DECODER) == kept
    assert decode_sealed(seal(encode_json(kept)), Kept) == kept


def test_encoded_text_is_valid_unicode_that_shows_the_bytes() -> None:
    assert json.loads(encode_json({"path": LATIN}).decode()) == {"path": r"caf\udce9"}
    assert msgspec.msgpack.decode(encode_msgpack({"path": LATIN})) == {"path": r"caf\udce9"}


def test_text_without_such_bytes_is_written_unchanged() -> None:
    plain = Kept("é 日本 \n \\n \\u00e9", ("\0", b"\xff"))
    assert encode_json(plain) == msgspec.json.encode(plain)
    assert encode_msgpack(plain) == msgspec.msgpack.encode(plain)


@pytest.mark.parametrize("data", [b"", b"\xff", b'{"text": 1}', rb'{"text": ["\\udce9"]}', b'"\xff\\\\udce9"'])
def test_damaged_data_raises_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(data, Kept)
    with pytest.raises(msgspec.DecodeError):
        decode_msgpack(data, DECODER)


def test_a_seal_notices_a_changed_byte_beside_escaped_ones() -> None:
    data = seal(encode_json(Kept(LATIN)))
    assert decode_sealed(data, Kept).text == LATIN
    with pytest.raises(msgspec.DecodeError, match="checksum"):
        decode_sealed(data.replace(b"udce9", b"udce8"), Kept)


def test_data_without_a_seal_is_accepted_only_where_a_seal_may_be_missing_and_a_wrong_seal_never() -> None:
    bare, sealed = encode_json(Kept("a")), seal(encode_json(Kept("a")))
    assert decode_sealed(bare, Kept, may_lack_seal=True) == decode_sealed(sealed, Kept, may_lack_seal=True) == Kept("a")
    for wrong, may_lack_seal in ((bare, False), (sealed.replace(b'"a"', b'"b"'), True)):
        with pytest.raises(msgspec.DecodeError, match="checksum"):
            decode_sealed(wrong, Kept, may_lack_seal=may_lack_seal)


def test_json_for_people_is_indented_by_two() -> None:
    assert indent_json({"a": [LATIN]}) == '{\n  "a": [\n    "caf\\\\udce9"\n  ]\n}'
