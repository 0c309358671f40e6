"""Every message has a handler wherever its contract lets it arrive."""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path

import msgspec
import pytest

from procsv.base.errors import ProcsvBug
from procsv.base.identity import CHECKPOINT, SUMMARY, TRAINER, WATCHDOG, TaskId
from procsv.base.run.paths import find_paths, make_private_dir
from procsv.ipc.messaging.checkpoint_messages import PlaceFile
from procsv.ipc.messaging.endpoint import Address, Received
from procsv.ipc.messaging.message import Message
from procsv.ipc.messaging.messages import Ack, Hello
from procsv.ipc.messaging.start import Start
from procsv.ipc.messaging.watchdog_messages import Inject, StopRun
from procsv.ipc.shm.heartbeat_file import HeartbeatWriter
from procsv.services.runtime import Tools
from procsv.services.summary.process import SummaryService
from procsv.training.runtime.link import HEARD
from procsv.watchdog.core.events import Said
from tests.support.core_desk import Desk
from tests.support.fake_clock import FakeClock
from tests.support.memory_transport import FakeNetwork, FakeServer
from tests.watchdog.world import World

IN_THE_SERVICE = (
    PlaceFile,
)  # services/checkpoint/process.py handles it: the core does not deal with the program's files
IN_THE_SKELETON = (Inject,)  # services/runtime.py handles it before the service sees it


def sent(sender: TaskId, receiver: TaskId) -> list[type[Message]]:
    kinds = Message.__subclasses__()
    return [kind for kind in kinds if kind.contract.may_be_sent_by(sender) and kind.contract.may_be_sent_to(receiver)]


def sample(kind: type[msgspec.Struct]) -> typing.Any:
    """Make a message of `kind`, or a value for a field of one, with something in each field."""
    return kind(**{field.name: _value(field.type) for field in msgspec.structs.fields(kind)})


def _value(kind: typing.Any) -> typing.Any:
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        return _value(typing.get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not TaskId:
        return sample(kind)
    return CHECKPOINT if kind is TaskId else (typing.get_origin(kind) or kind)()


@pytest.mark.parametrize("sender", [TRAINER, CHECKPOINT, SUMMARY])
def test_the_watchdogs_core_handles_everything_that_a_trainer_or_a_service_may_send(sender: TaskId) -> None:
    for kind in sent(sender, WATCHDOG):
        world = World().ready()
        world.handle(Said(sender, 1, sample(kind)))


@pytest.mark.parametrize("sender", [TRAINER, WATCHDOG])
def test_the_checkpoint_core_handles_everything_its_service_may_receive(sender: TaskId) -> None:
    for kind in sent(sender, CHECKPOINT):
        if kind not in (*IN_THE_SKELETON, *IN_THE_SERVICE, Hello):
            Desk().say(sample(kind), task=sender)


@pytest.mark.parametrize("sender", [TRAINER, WATCHDOG])
def test_the_summary_service_handles_everything_it_may_receive(sender: TaskId, tmp_path: Path) -> None:
    paths = find_paths(tmp_path / "logdir")
    paths.home.mkdir(parents=True)
    for directory in (paths.run_dir, paths.shm_dir):
        make_private_dir(directory)
    clock = FakeClock()
    start = Start(SUMMARY, "r", 1, str(paths.logdir), str(paths.run_dir), str(paths.shm_dir))
    server = FakeServer(FakeNetwork(clock), paths.service_socket(SUMMARY), Address("r", SUMMARY, 1), clock)
    heartbeat = HeartbeatWriter(paths.heartbeat(SUMMARY, 1))
    service = SummaryService(Tools(start, clock, server, heartbeat, lambda: None))
    try:
        for kind in sent(sender, SUMMARY):
            if kind not in IN_THE_SKELETON:
                body = Hello(os.getpid()) if kind is Hello else sample(kind)
                service.handle_message(Received(b"x", sender, 1, 0, 0, body, None))
    finally:
        service.close()
        heartbeat.close()
        for directory in (paths.run_dir, paths.shm_dir):
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()


@pytest.mark.parametrize("sender", [CHECKPOINT, SUMMARY, WATCHDOG])
def test_a_training_process_handles_everything_it_may_receive(sender: TaskId) -> None:
    assert set(sent(sender, TRAINER)) <= HEARD | {Ack}


def test_a_training_process_has_no_handler_for_messages_that_nobody_may_send() -> None:
    assert {*sent(CHECKPOINT, TRAINER), *sent(SUMMARY, TRAINER), *sent(WATCHDOG, TRAINER)} >= HEARD


def test_a_message_unknown_to_a_core_is_our_bug() -> None:
    with pytest.raises(ProcsvBug, match="StopRun has no handler"):
        World().ready().handle(Said(TRAINER, 1, StopRun(now=True)))
