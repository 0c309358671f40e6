"""The tests for each row of the fault matrix. test_matrix.py checks that they exist.

A test with `row_NN` in its name, in any folder, belongs to row NN. ALSO lists further tests of a
row, as `file::function` with the file under tests/. The simulator (tests/simulation) also injects
all faults at random: row 37.
"""

from __future__ import annotations

ROWS_IN_ALL = 85

ALSO: dict[int, tuple[str, ...]] = {
    1: ("run/test_survival.py::test_a_kill_before_the_first_step_costs_only_the_start",),
    7: ("watchdog/core/test_run.py::test_complete_training_ends_in_order_with_exit_code_0",),
    8: (
        "run/test_preemption.py::test_a_notice_to_the_watchdog_ends_the_run_with_75_and_the_same_command_loses_no_step",
    ),
    15: (
        "checkpoint/test_checkpoint_process.py::test_after_a_kill_at_any_moment_the_next_service_saves_again",
        "run/test_survival.py::test_ten_kills_of_each_service_leave_the_trainer_alone_and_lose_nothing",
    ),
    16: (
        "run/test_refusals.py::"
        "test_a_checkpoint_service_that_dies_at_every_start_fails_the_run_at_once_with_its_last_words",
    ),
    17: (
        "checkpoint/test_checkpoint_process.py::test_a_full_disk_is_reported_and_the_save_succeeds_when_there_is_room",
        "checkpoint/test_checkpoint_commit.py::"
        "test_a_failed_disk_call_leaves_what_was_acknowledged_and_the_next_save_is_good",
        "run/test_bad_disk.py::test_a_full_lost_or_read_only_logdir_is_reported_once_and_shown_in_status_while_training_goes_on",
    ),
    18: (
        "checkpoint/test_checkpoint_power_loss.py::"
        "test_an_acknowledged_checkpoint_outlives_a_kill_and_a_power_loss_after_any_call",
    ),
    19: (
        "cli/test_checkpoints.py::test_a_truncated_file_is_noticed_by_its_size",
        "checkpoint/test_checkpoint_catalog.py::test_a_garbled_manifest_makes_its_checkpoint_suspect",
    ),
    20: (
        "checkpoint/test_checkpoint_catalog.py::test_when_every_checkpoint_is_bad_the_error_names_each_and_stays_an_error",
    ),
    21: (
        "checkpoint/test_checkpoint_catalog.py::"
        "test_a_checkpoint_being_restored_is_not_deleted_until_the_trainer_has_it",
    ),
    22: (
        "run/test_small_memory.py::"
        "test_a_run_whose_slots_do_not_fit_into_shared_memory_saves_by_staging_and_says_so_once",
    ),
    23: (
        "summary/test_killed_service.py::test_a_kill_at_each_moment_loses_and_doubles_nothing",
        "run/test_survival.py::test_ten_kills_of_each_service_leave_the_trainer_alone_and_lose_nothing",
    ),
    24: (
        "summary/test_event_backlog.py::"
        "test_the_oldest_unsent_record_is_dropped_and_counted_and_the_numbers_have_no_gap",
        "summary/test_event_backlog.py::test_the_backlog_is_bounded_in_bytes_too",
    ),
    25: ("run/test_survival.py::test_a_killed_watchdog_costs_no_step_and_the_same_command_resumes",),
    30: (
        "ipc/messaging/test_zmq_transport.py::test_a_stale_socket_is_replaced",
        "base/test_processes.py::test_an_external_process_is_watched_and_ended_with_its_tree",
    ),
    32: (
        "ipc/messaging/test_zmq_transport.py::test_a_peer_that_sends_too_much_is_disconnected_and_the_others_are_served",
    ),
    35: (
        "run/test_bad_disk.py::test_a_full_lost_or_read_only_logdir_is_reported_once_and_shown_in_status_while_training_goes_on",
    ),
    37: ("drill/test_drill_command.py::test_a_training_ends_bit_identical_after_twenty_mixed_faults",),
    38: (
        "drill/test_preempt_command.py::test_a_process_that_outlives_the_grace_period_is_killed_and_its_memory_is_gone",
        "training/snapshots/test_stop_save.py::test_a_notice_in_a_long_evaluation_costs_no_step",
    ),
}
