"""Keys derive from a secret: equal for all its holders, and different for any other secret, start or purpose."""

from __future__ import annotations

import hashlib
import hmac

import zmq
from zmq.utils import z85

from procsv.ipc.messaging.curve_transport import SALT, derive_keys, member_keys

SECRET, START = b"0123456789abcdef" * 2, "k8s:uid:0"


def test_all_holders_of_the_secret_have_the_same_keys_and_nobody_else_has() -> None:
    keys = derive_keys(SECRET, START)

    assert derive_keys(SECRET, START) == keys
    others = [derive_keys(SECRET + b"1", START), derive_keys(SECRET, "k8s:uid:1")]
    values = [
        text
        for each in (keys, *others)
        for text in (
            each.coordinator.secret,
            each.coordinator.public,
            *(
                value
                for n in (1, 2)
                for value in (member_keys(each.members, n).secret, member_keys(each.members, n).public)
            ),
            each.fingerprint,
        )
    ]
    assert len(set(values)) == len(values)
    assert keys.coordinator.public.encode() == zmq.curve_public(keys.coordinator.secret.encode())


def test_the_derived_keys_match_the_standards_test_vectors() -> None:
    """RFC 5869 written out: extract with the salt, then the first block of expand."""
    extracted = hmac.new(SALT, SECRET, hashlib.sha256).digest()
    block = hmac.new(extracted, b"curve key of the coordinator\0" + START.encode() + b"\x01", hashlib.sha256).digest()
    assert z85.decode(derive_keys(SECRET, START).coordinator.secret.encode()) == block


def test_the_coordinator_knows_each_member_by_its_own_key() -> None:
    keys = derive_keys(SECRET, START)
    assert keys.of_members(2) == {member_keys(keys.members, n).public: f"member.{n}" for n in (1, 2)}


def test_secrets_do_not_show_in_logs() -> None:
    keys = derive_keys(SECRET, START)
    assert keys.members not in repr(keys)
    assert keys.coordinator.secret not in repr(keys)
    assert keys.fingerprint in repr(keys)
