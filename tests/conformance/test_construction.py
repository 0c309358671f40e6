"""The constructor has TensorFlow's arguments, defaults, collections, properties and errors."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import procsv
from tests.conformance.conftest import TENSORFLOWS
from tests.conformance.differences import Kind

tf1 = tf.compat.v1
Keys = tf1.GraphKeys

ALIASES = {
    "PrepareSession": "prepare_or_wait_for_session",
    "StartQueueRunners": "start_queue_runners",
    "StartStandardServices": "start_standard_services",
    "Stop": "stop",
    "RequestStop": "request_stop",
    "Loop": "loop",
    "ShouldStop": "should_stop",
    "StopOnException": "stop_on_exception",
    "WaitForStop": "wait_for_stop",
    "SummaryComputed": "summary_computed",
}
PROPERTIES = [
    "is_chief",
    "session_manager",
    "coord",
    "init_op",
    "init_feed_dict",
    "ready_op",
    "ready_for_local_init_op",
    "summary_writer",
    "summary_op",
    "save_summaries_secs",
    "global_step",
    "saver",
    "save_model_secs",
    "save_path",
]


def _arguments(function: Any) -> list[tuple[str, Any]]:
    own = inspect.Parameter.KEYWORD_ONLY
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind != own]


@pytest.mark.parametrize("method", ["__init__", "managed_session", *ALIASES.values()])
def test_arguments_have_the_names_order_and_defaults_of_tensorflows(method: str) -> None:
    assert _arguments(getattr(procsv.Supervisor, method)) == _arguments(getattr(TENSORFLOWS, method))


def test_arguments_that_tensorflow_lacks_are_keyword_only() -> None:
    parameters = inspect.signature(procsv.Supervisor.__init__).parameters.values()
    own = [p.name for p in parameters if p.kind == inspect.Parameter.KEYWORD_ONLY]
    assert own == ["snapshot_secs", "final_checkpoint"]


@pytest.mark.parametrize("module", [procsv, procsv.keras], ids=["procsv", "procsv.keras"])
def test_signatures_show_each_default_by_name_and_none_by_address(module: Any) -> None:
    public = [getattr(module, name) for name in module.__all__]
    signatures = {call.__name__: str(inspect.signature(call)) for call in public if callable(call)}
    assert {name: text for name, text in signatures.items() if " at 0x" in text} == {}


def test_aliases_are_the_methods_themselves(kind: Kind) -> None:
    for alias, method in ALIASES.items():
        assert getattr(kind.Supervisor, alias) is getattr(kind.Supervisor, method)


def test_use_default_equals_zero(kind: Kind) -> None:
    assert kind.Supervisor.USE_DEFAULT == 0  # type: ignore[attr-defined]


def test_the_class_has_its_public_name(kind: Kind) -> None:
    assert kind.Supervisor._tf_api_names_v1 == ["train.Supervisor"]  # type: ignore[attr-defined]


def test_our_class_is_a_subclass_of_tensorflows() -> None:
    assert issubclass(procsv.Supervisor, TENSORFLOWS)


def test_properties_exist_and_are_read_only(kind: Kind) -> None:
    supervisor = kind.Supervisor()
    for name in PROPERTIES:
        getattr(supervisor, name)
        with pytest.raises(AttributeError):
            setattr(supervisor, name, None)
    for name in ("graph", "logdir", "stop_grace_secs"):
        assert not hasattr(supervisor, name)


def test_an_empty_graph_gets_no_saver_step_or_summaries(kind: Kind) -> None:
    supervisor = kind.Supervisor()
    assert supervisor.saver is None
    assert supervisor.global_step is None
    assert supervisor.summary_op is None
    assert supervisor.ready_for_local_init_op is None
    assert supervisor.ready_op is not None
    assert supervisor.init_op is not None
    assert supervisor.save_path is None
    assert supervisor.summary_writer is None
    assert (supervisor.save_summaries_secs, supervisor.save_model_secs) == (120, 600)


def test_objects_it_creates_are_in_the_collections(kind: Kind) -> None:
    tf1.get_variable("v", [], tf.float32)
    tf1.summary.scalar("s", 1.0)
    step = tf1.train.get_or_create_global_step()
    supervisor = kind.Supervisor()
    found = {key: tf1.get_collection(key) for key in (Keys.READY_OP, Keys.INIT_OP, Keys.LOCAL_INIT_OP)}
    assert found[Keys.READY_OP] == [supervisor.ready_op]
    assert found[Keys.INIT_OP] == [supervisor.init_op]
    assert found[Keys.LOCAL_INIT_OP] == [supervisor._local_init_op]
    assert tf1.get_collection(Keys.SAVERS) == [supervisor.saver]
    assert tf1.get_collection(Keys.SUMMARY_OP) == [supervisor.summary_op]
    assert tf1.get_collection(Keys.GLOBAL_STEP) == [step]
    assert supervisor.global_step is step


def test_the_first_of_a_collection_is_used_by_default(kind: Kind) -> None:
    tf1.get_variable("v", [], tf.float32)
    names = tf.constant([], tf.string)
    ops = {key: tf.no_op() for key in (Keys.INIT_OP, Keys.LOCAL_INIT_OP)}
    for key, op in ops.items():
        tf1.add_to_collection(key, op)
        tf1.add_to_collection(key, tf.no_op())
    tf1.add_to_collection(Keys.READY_OP, names)
    tf1.add_to_collection(Keys.READY_FOR_LOCAL_INIT_OP, names)
    saver, summary = tf1.train.Saver(), tf.constant(b"")
    tf1.add_to_collection(Keys.SAVERS, saver)
    tf1.add_to_collection(Keys.SUMMARY_OP, summary)
    supervisor = kind.Supervisor()
    assert supervisor.init_op is ops[Keys.INIT_OP]
    assert supervisor._local_init_op is ops[Keys.LOCAL_INIT_OP]
    assert supervisor.ready_op is names
    assert supervisor.ready_for_local_init_op is names
    assert supervisor.saver is saver
    assert supervisor.summary_op is summary


def test_none_switches_off_and_false_does_not(kind: Kind) -> None:
    tf1.get_variable("v", [], tf.float32)
    options = dict.fromkeys(["ready_op", "init_op", "local_init_op", "summary_op", "saver", "global_step", "graph"])
    supervisor = kind.Supervisor(**options)
    assert supervisor.ready_op is None
    assert supervisor.init_op is None
    assert supervisor._local_init_op is None
    assert supervisor.saver is None
    assert supervisor.global_step is None
    with tf.Graph().as_default():
        tf1.get_variable("v", [], tf.float32)
        assert kind.Supervisor(saver=False).saver is False


def test_the_default_saver_keeps_five_whole_checkpoints_and_tables_alone_get_none(kind: Kind) -> None:
    with tf.Graph().as_default():
        tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        assert kind.Supervisor().saver is None
    tf1.get_variable("v", [], tf.float32)
    saver_def = kind.Supervisor().saver.saver_def
    assert (saver_def.max_to_keep, saver_def.sharded) == (5, False)


def test_what_it_finds_in_the_graph_is_logged(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    tf.get_logger().propagate = True
    tf.get_logger().setLevel("INFO")
    for _ in range(2):
        tf1.add_to_collection(Keys.INIT_OP, tf.no_op())
    tf1.get_variable("global_step", [], tf.float32, use_resource=False)
    kind.Supervisor()
    assert f"Found 2 {Keys.INIT_OP} operations. Returning the first one." in caplog.text
    assert "Found 'global_step' is not an int type: " in caplog.text


def test_private_names_that_libraries_use_exist(kind: Kind) -> None:
    def init(session: Any) -> None: ...

    options = tf1.RunOptions()
    supervisor = kind.Supervisor(stop_grace_secs=7, recovery_wait_secs=3, init_fn=init, local_init_run_options=options)
    assert supervisor._graph is tf1.get_default_graph()
    assert supervisor._logdir is None
    assert supervisor._stop_grace_secs == 7
    assert supervisor._recovery_wait_secs == 3
    assert supervisor._init_fn is init
    assert supervisor._local_init_run_options is options
    assert supervisor._graph_added_to_summary is False
    assert supervisor._meta_graph_def.graph_def.node


def test_the_graph_is_finalized(kind: Kind) -> None:
    kind.Supervisor()
    with pytest.raises(RuntimeError, match=r"Graph is finalized and cannot be modified\."):
        tf.constant(1)


def test_a_float_named_global_step_is_not_the_step(kind: Kind) -> None:
    tf1.get_variable("global_step", [], tf.float32, use_resource=False)
    assert kind.Supervisor().global_step is None


def test_a_ref_variable_named_global_step_is_the_step(kind: Kind) -> None:
    tf1.get_variable("global_step", [], tf.int32, use_resource=False, trainable=False)
    assert kind.Supervisor().global_step.op.name == "global_step"


def test_a_resource_variable_named_global_step_is_the_step(kind: Kind) -> None:
    variable = tf1.get_variable("global_step", [], tf.int64, use_resource=True, trainable=False)
    assert kind.Supervisor().global_step is (variable if kind.differs("no graph handle as global step") else None)


def test_eager_execution_is_refused(kind: Kind) -> None:
    with tf.init_scope(), pytest.raises(RuntimeError) as caught:
        _construct_eagerly(kind)
    assert str(caught.value).startswith("Supervisors are incompatible with eager execution.")
    assert ("disable_eager_execution()" in str(caught.value)) is kind.differs("cure of eager execution")


def _construct_eagerly(kind: Kind) -> None:
    with context.eager_mode():
        kind.Supervisor()


def test_a_worker_writes_nothing_whatever_its_arguments(kind: Kind, tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    supervisor = kind.Supervisor(is_chief=False, logdir=str(logdir), save_model_secs=1, save_summaries_secs=1)
    assert supervisor.save_path is None
    assert supervisor.summary_writer is None
    assert supervisor.save_model_secs is None
    assert supervisor.save_summaries_secs is None
    assert supervisor._logdir is None
    assert not logdir.exists()
    with pytest.raises(RuntimeError) as services:
        supervisor.start_standard_services(None)
    assert str(services.value) == (
        "Only chief supervisor can start standard services. Because only chief supervisors can write events."
    )
    with pytest.raises(RuntimeError, match=r"^Writing a summary requires a summary writer\.$"):
        supervisor.summary_computed(None, b"")


def test_a_worker_needs_devices_for_ref_variables(kind: Kind) -> None:
    tf1.get_variable("v", [], tf.float32, use_resource=False)
    with pytest.raises(ValueError, match="When using replicas, all Variables must have their device set"):
        kind.Supervisor(is_chief=False)


def test_a_worker_ignores_resource_variables(kind: Kind) -> None:
    tf1.get_variable("v", [], tf.float32, use_resource=True)
    kind.Supervisor(is_chief=False)


def test_ready_for_local_init_op_needs_a_local_init_op(kind: Kind) -> None:
    with pytest.raises(ValueError, match="If you pass a ready_for_local_init_op you must also pass a local_init_op"):
        kind.Supervisor(ready_for_local_init_op=tf.constant([], tf.string), local_init_op=None)


def test_the_save_path_joins_logdir_and_basename(kind: Kind, tmp_path: Path) -> None:
    supervisor = kind.Supervisor(logdir=str(tmp_path / "logdir"), checkpoint_basename="mine")
    assert supervisor.save_path == str(tmp_path / "logdir" / "mine")
    assert supervisor.summary_writer.get_logdir() == str(tmp_path / "logdir")
    assert (tmp_path / "logdir").is_dir()
    assert not list((tmp_path / "logdir").glob("events*"))  # the file comes with the first event
    supervisor.summary_writer.close()


def test_the_users_session_manager_is_used_unchanged(kind: Kind) -> None:
    manager = tf1.train.SessionManager()
    assert kind.Supervisor(session_manager=manager).session_manager is manager


def test_services_without_a_logdir_are_off_with_a_warning(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    tf.get_logger().propagate = True
    supervisor = kind.Supervisor()
    with tf1.Session() as session:
        assert supervisor.start_standard_services(session) is None
    assert "Standard services need a 'logdir' passed to the SessionManager" in caplog.text


def test_queues_do_not_work_under_eager_execution(kind: Kind) -> None:
    supervisor = kind.Supervisor()
    with context.eager_mode(), pytest.raises(RuntimeError, match=r"Queues are not compatible with eager execution\."):
        supervisor.start_queue_runners(None)
