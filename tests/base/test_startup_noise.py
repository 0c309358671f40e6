"""TensorFlow's start-up noise is filtered from a program's output, however the output is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.terminal import NoiseFilter, is_startup_noise

NOISE = [
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    b"I0000 00:00:1795351587.118606    3412 port.cc:153] oneDNN custom operations are on. You may see slightly",
    b"I0000 00:00:1795351587.124464    3412 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will",
    b"2024-05-01 10:00:00.123456: I external/local_tsl/tsl/cuda/cudart_stub.cc:31] Could not find cuda drivers on your machine",
    b"2024-05-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized",
    b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate"
    b" compiler flags.",
    b"2024-05-01 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register"
    b" cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
    b"I0000 00:00:1795351587.124464    3412 mlir_graph_optimization_pass.cc:425] MLIR V1 optimization pass is not enabled",
]
OTHERS = [
    b"step 20/300  loss 1.9781",
    b"2024-05-01 10:00:00 INFO my own logger says it",
    b"WARNING:tensorflow:From train.py:3: calling it is deprecated",
    b"W0000 00:00:1795351587.1    3412 gpu_device.cc:2433] Cannot dlopen some GPU libraries.",
    b"E0000 00:00:1795351587.1    3412 cuda_executor.cc:1] failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    b"I am no log line",
    b"1000 steps\r2000 steps\r3000 steps",
    b"",
]


def filtered(pieces: list[bytes]) -> bytes:
    noise = NoiseFilter()
    return b"".join(map(noise.pass_on, pieces)) + noise.release()


@pytest.mark.parametrize("line", NOISE)
def test_the_messages_of_every_tensorflow_start_are_noise(line: bytes) -> None:
    assert is_startup_noise(line)


@pytest.mark.parametrize("line", NOISE)
def test_noise_that_arrives_in_two_pieces_is_noise(line: bytes) -> None:
    for cut in range(len(line)):
        assert filtered([b"before\n" + line[:cut], line[cut:] + b"\nafter\n"]) == b"before\nafter\n", cut


@pytest.mark.parametrize("line", OTHERS)
def test_the_programs_output_and_warnings_are_not_noise(line: bytes) -> None:
    assert not is_startup_noise(line)


@given(
    st.lists(st.sampled_from(NOISE + OTHERS), max_size=12),
    st.booleans(),
    st.lists(st.integers(min_value=0, max_value=400), max_size=12),
)
def test_the_result_is_the_same_however_the_output_is_split(
    lines: list[bytes], is_whole: bool, cuts: list[int]
) -> None:
    data = b"\n".join(lines) + (b"\n" if is_whole else b"")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    kept = [line for line in data.split(b"\n") if line not in NOISE]
    assert filtered(pieces).replace(b"\n", b"") == b"".join(kept)
    assert filtered(pieces) == filtered([data])


def test_a_question_without_a_newline_is_shown_once_nothing_follows_it() -> None:
    noise = NoiseFilter()
    assert noise.pass_on(b"I0000 1 ready? ") == b"", "it may become noise"
    assert noise.release() == b"I0000 1 ready? "
    assert noise.pass_on(b"yes\n") == b"yes\n"
