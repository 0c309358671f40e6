"""With any variables, kills and message order, the restored state is the captured one, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsv.services.checkpoint.format.state_file import read_state
from tests.support.checkpoint_world import Captured, Shards, World, any_array

DTYPES: list[Any] = [
    *(np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.bool_),
    *(np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64, np.complex64, np.complex128, object),
]
# What TensorFlow joins from its slices; it can read the others only as they were written.
PUT_TOGETHER: list[Any] = [np.float32, np.float64, np.bool_, np.int8, np.uint8, np.int32, np.int64, np.complex64]
SIZE = 200_000

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
variables = st.lists(st.tuples(st.sampled_from(DTYPES), shapes, st.integers(1, 3)), max_size=6)
actions = st.one_of(
    st.tuples(st.just("capture"), variables, st.sampled_from(["", "", "manual", "periodic"])),
    st.tuples(st.just("capture"), variables, st.just("")),
    st.tuples(st.just("wait"), st.integers(1, 40)),
    st.tuples(st.just("kill the service"), st.integers(0, 60)),
    st.tuples(st.just("kill the trainer"), st.booleans(), st.integers(0, 5)),
    st.tuples(
        st.just("network"),
        st.sampled_from([0.0, 0.1, 0.3]),
        st.sampled_from([0.0, 0.3]),
        st.sampled_from([0.0, 0.5, 3.0]),
    ),
)


def make(listed: list[tuple[Any, tuple[int, ...], int]], step: int, chance: np.random.Generator) -> tuple[Shards, bool]:
    """Make variables, cut along their first dimension if they have several parts, spread over that many shards."""
    shards: Shards = [[("global_step", "", np.array(step, np.int64))]]
    for number, (dtype, shape, parts) in enumerate(listed):
        value = any_array(dtype, shape, chance)
        if parts == 1 or not shape or shape[0] < parts or 0 in shape or dtype is object:
            shards[number % len(shards)].append((f"v{number}", "", value))
            continue
        edges = [shape[0] * part // parts for part in range(parts + 1)]
        while len(shards) < parts:
            shards.append([])
        for part, (begin, end) in enumerate(itertools.pairwise(edges)):
            rest = "".join(":-" for _ in shape[1:])
            spec = f"{' '.join(map(str, shape))} {begin},{end - begin}{rest}"
            shards[part].append((f"v{number}", spec, value[begin:end]))
    return shards, len(shards) > 1


@pytest.fixture
def top(run: Any) -> Iterator[Path]:
    directory = run.paths.shm_dir / "logdir"
    directory.mkdir()
    yield directory
    directory.rmdir()


def play(world: World, script: list[tuple[Any, ...]], chance: np.random.Generator) -> None:
    world.begin_training(world.start_trainer(False), SIZE)
    for what, *how in script:
        match what:
            case "capture":
                shards, sharded = make(how[0], world.step + 1, chance)
                world.capture(shards, sharded, how[1])
                world.turn()
            case "wait":
                for _ in range(how[0]):
                    world.turn()
            case "kill the service" if how[0] == 0:
                world.kill_service()
            case "kill the service":
                world.kill_service_at(how[0])
            case "kill the trainer":
                if how[1] == 5:  # die in the middle of a snapshot
                    world.capture([[("v", "", np.ones(100))]], False, "", torn=True)
                world.kill_trainer()
                for _ in range(how[1]):
                    world.turn()
                answer = world.start_trainer(how[0])
                world.check_restored(answer)
                world.begin_training(answer, SIZE)
            case "network":
                world.network.loss, world.network.duplication, world.network.delay_s_max = how


def check_with_tensorflow(path: str, captured: Captured) -> None:
    reader = tf.train.load_checkpoint(path)
    whole: dict[str, list[Any]] = {}
    for shard in captured.shards:
        for key, _, value in shard:
            whole.setdefault(key, []).append(value)
    assert reader.get_variable_to_shape_map().keys() == whole.keys()
    for key, pieces in whole.items():
        value = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        dtype = tf.string if value.dtype == object else tf.as_dtype(value.dtype)
        (tensor,) = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[key], shape_and_slices=[""], dtypes=[dtype])
        read = tensor.numpy()
        if value.dtype == object:
            assert np.asarray(read, object).reshape(-1).tolist() == value.reshape(-1).tolist()
        else:
            assert (np.asarray(read).dtype, np.asarray(read).shape) == (value.dtype, value.shape)
            assert np.asarray(read).tobytes() == value.tobytes()


def run_through(run: Any, plan: Any, top: Path, script: list[tuple[Any, ...]], seed: int, by_tensorflow: bool) -> None:
    world = World(run, plan(save_path=str(top / "model.ckpt"), save_secs=2.0, max_to_keep=2), seed)
    try:
        play(world, script, np.random.default_rng(seed))
        world.finish()
        state = read_state(top / "checkpoint")
        assert (state is None) == (world.newest == 0)
        for path in state.all_paths if state is not None else ():
            captured = world.check_checkpoint(path)
            if by_tensorflow:
                check_with_tensorflow(path, captured)
        if state is not None:
            assert len(state.all_paths) <= 3  # the restored checkpoint is kept one turn longer
            assert state.latest == f"{world.plan.save_path}-{world.captured[world.newest].step}"
        assert world.recording.unseen == [], "the disk was changed past its gate"
    finally:
        world.close()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(actions, max_size=30), seed=st.integers(0, 2**32 - 1))
def test_a_restored_state_is_the_one_captured_at_that_step_bit_for_bit(
    script: list[tuple[Any, ...]], seed: int, run: Any, plan: Any, top: Path
) -> None:
    run_through(run, plan, top, script, seed, by_tensorflow=False)


@pytest.mark.parametrize("seed", range(3))
def test_tensorflow_reads_every_variable_as_it_was_captured(run: Any, plan: Any, top: Path, seed: int) -> None:
    cut = [(dtype, (4, 2), 1 + seed) for dtype in PUT_TOGETHER]
    every = [(dtype, shape, 1) for dtype in DTYPES for shape in ((), (0, 3), (4, 2))] + cut
    script = [("capture", every, ""), ("kill the service", 10 + seed), ("wait", 30), ("capture", every[::-1], "manual")]
    run_through(run, plan, top, [*script, ("wait", 30), ("kill the trainer", False, 1)], seed, by_tensorflow=True)
