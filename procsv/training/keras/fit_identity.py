"""Tell the fits of a program apart across its starts.

After a crash a program may reach its fits in another order: it skips the folds that it has done, or
reads how many epochs it has trained. So a number alone never identifies a fit. Its identity is its
make-up (layers, optimizer, loss, metrics, epochs, callbacks), its starting point (weights, data),
and the attributes and the code of the program's own classes in all these. `decide`, which is pure,
compares this identity with the newest state. When in doubt, it has the fit trained.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import keras
import msgspec
import numpy as np
import tensorflow as tf
import xxhash

from procsv.base.errors import UserError
from procsv.base.plain_values import decode, encode, find_unkept
from procsv.training.keras import private
from procsv.training.keras.callback_state import PATH_CHARS, names_path, refusals_of
from procsv.training.keras.callbacks import BASELINE, FITS_OWN, is_set_at_begin
from procsv.training.keras.content_digest import ContentDigest, is_own, is_time_of_process, set_by_libraries
from procsv.training.keras.epochs import functions_of

Plain = dict[str, Any]

VALIDATION = ("validation_data", "validation_freq", "validation_steps", "validation_batch_size")
CONFIGURATION = ("layers", "variables", "optimizer", "loss", "initial_epoch")  # if one differs, the fit is another
_UNSEEN = "cannot be compared"
# Names and objects that differ from process to process, so they are left out of a digest.
_NO_SETTING = {"name", "_name", "_path", "module", "registered_name", "build_config", "shared_object_id"}
IGNORED_DATASET_ATTRIBUTES = {"_variant_tensor_attr", "_graph_attr", "_options_attr", "_name", "_metadata"}
_TEXT_MAX = 60
_DIGEST = re.compile("[0-9a-f]{32}")
_SCALARS = (type(None), bool, int, float, str)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque, np.ndarray)
_SPECS = (tf.TypeSpec, tf.TensorShape, tf.DType)
_DESCRIBED = (tf.data.Dataset, tf.Tensor, tf.Variable, keras.Variable, keras.Layer)

# Files whose paths are in the data count by content up to these totals, and beyond them by size and time.
FILES_READ_MAX = 1000
FILE_BYTES_READ_MAX = 64 << 20
_REMOTE = re.compile(r"(gs|s3|hdfs|viewfs|az|abfs)://")


class FitIdentity(msgspec.Struct, frozen=True):
    """The identity of one fit, taken when it begins."""

    settings: Plain  # under names that a user understands
    key: str  # a hash of all settings
    generators: Sequence[Any] = ()  # the random generators that the data draw from

    @classmethod
    def from_settings(cls, settings: Plain, generators: Sequence[Any] = ()) -> FitIdentity:
        return cls(settings, xxhash.xxh3_128_hexdigest(encode(settings)), generators)

    @property
    def is_certain(self) -> bool:
        """Return whether a fit with the same key is certainly this one."""
        return not find_unseen_settings(self)

    def encode(self) -> bytes:
        return encode(self.settings)


def identify(
    model: Any, epochs: int, shape: Sequence[int | None], call: Mapping[str, Any], callbacks: Iterable[Any]
) -> FitIdentity:
    """Return the identity of a fit that begins.

    `epochs` is the argument of `fit`. `shape` is steps_per_epoch, steps_per_execution and batches.
    `call` holds the arguments of `fit`, as hooks.fit_arguments returns them. `callbacks` are those
    that the program passed.
    """
    is_built, callbacks = private.is_built(model), list(callbacks)
    layers, parts = private.layers_of(model), [getattr(model, "loss", None), private.user_metrics(model)]
    classes = [type(one) for one in [*layers, model.optimizer, *tf.nest.flatten(parts), *callbacks]]
    generators = list[Any]()
    return FitIdentity.from_settings(
        {
            "layers": [[type(one).__qualname__, settings_of(_own_config(one))] for one in layers],
            "variables": [[list(v.shape), str(v.dtype)] for v in model.weights] if is_built else None,
            "optimizer": settings_of(model.optimizer),
            "loss": settings_of([getattr(model, "loss", None), private.loss_weights(model)]),
            "metrics": settings_of(private.user_metrics(model)),
            "initial_epoch": call.get("initial_epoch"),
            "epochs": epochs,
            "batches": list(shape),
            "batch_size": call.get("batch_size"),
            "data": _digest(
                *(call.get(name) for name in ("x", "y", "sample_weight", "class_weight", "shuffle")),
                is_known="x" in call,
                is_data=True,
                generators=generators,
            ),
            "validation": _digest(*(call.get(name) for name in VALIDATION), is_data=True, generators=generators),
            "callbacks": [[type(one).__qualname__, callback_settings(one)] for one in callbacks],
            "seed": list(tf.compat.v1.get_seed(0)),
            "weights": _digest_weights(model),
            "attributes": _digest(*map(own_attributes, layers), known=[*layers, *model.variables]),
            "code": _digest(*filter(is_own, classes)),
        },
        list({id(one): one for one in generators}.values()),
    )


# -- settings ----------------------------------------------------------------------------------------------------
def settings_of(value: Any) -> Plain:
    """Return every plain value in a configuration by its path, such as
    `kernel_initializer.scale`.
    """
    return dict(_settings(value, ""))


def _settings(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(value) in _SCALARS:
        yield path, value
    elif isinstance(value, Mapping):
        if "class_name" in value and "config" in value:
            yield path, str(value["class_name"])
            value = value["config"] if isinstance(value["config"], Mapping) else {"": value["config"]}
        for key, item in value.items():
            if key not in _NO_SETTING:
                yield from _settings(item, f"{path}.{key}".strip("."))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _settings(item, f"{path}.{number}".strip("."))
    elif isinstance(value, np.generic) or (hasattr(type(value), "__array__") and np.ndim(value) == 0):
        yield from _settings(np.asarray(value).item(), path)
    elif callable(getattr(value, "get_config", None)):
        yield path, type(value).__qualname__
        yield from _settings(_config_of(value), path)
        for name, item in own_attributes(value).items():
            yield f"{path}.{name}".strip("."), item if type(item) in _SCALARS else _digest(item)
    else:
        yield path, _digest(value)


def _config_of(one: Any) -> Any:
    """Return the configuration of `one`, or its plain attributes if Keras cannot describe its
    class.
    """
    try:
        return one.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        attributes = {} if is_own(one) else vars(one).copy()  # `own_attributes` has the others
        return {name: value for name, value in attributes.items() if type(value) in _SCALARS}


def _own_config(layer: Any) -> Any:
    """Return a layer's configuration, or nothing for a model.

    `identify` compares each layer of a model on its own. The names in a model's configuration
    differ from process to process.
    """
    return {} if isinstance(layer, keras.Model) else _config_of(layer)


def own_attributes(one: Any) -> Plain:
    """Return what the program has put into an object of Keras: functions and objects of its own.

    If the class is the program's own, too, that is every attribute that no code of Keras sets.
    """
    attributes = getattr(one, "__dict__", {}).copy()  # another thread may change it
    if is_own(one):
        others = {BASELINE, "history", *set_by_libraries(type(one).__mro__)}  # `fit` replaces the history
        return {name: value for name, value in attributes.items() if name not in others}
    return {name: value for name, value in attributes.items() if is_own(value)}


def callback_settings(callback: Any) -> Plain:
    """Return what distinguishes two callbacks of a class: everything but what belongs to a process.

    Paths, process ids, files, the time, and what `on_train_begin` sets do not count.
    """
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        return {}  # the callback itself decides what belongs to a fit
    found = Plain()
    for name, value in vars(callback).copy().items():  # another thread may change it
        is_time = type(value) is float and is_time_of_process(value)
        if name in FITS_OWN or is_time or is_set_at_begin(callback, name):
            continue
        if type(value) in _SCALARS and not (type(value) is str and not value.isidentifier()):
            if not find_unkept(value, refusals_of(name)):
                found[name] = value
        elif is_own(value) or (is_own(callback) and isinstance(value, (*_CONTAINERS, *_DESCRIBED))):
            found[name] = _digest(value)
    return found


# -- content -----------------------------------------------------------------------------------------------------
def _digest(
    *values: Any,
    is_known: bool = True,
    is_data: bool = False,
    known: Iterable[Any] = (),
    generators: list[Any] | None = None,
) -> str:
    """Digest `values`, without the objects `known`, which are digested elsewhere.

    Return _UNSEEN if a value hides some of its content, or if `is_known` is False. `generators`
    gets the random generators in `values`.
    """
    digest = _FitDigest(is_data, generators)
    digest.pass_over(known)
    try:
        for value in values:
            digest.add_value(value)
    except Exception:  # noqa: BLE001  reading attributes and items runs code of the program
        return _UNSEEN
    return digest.hexdigest() if digest.is_whole and is_known else _UNSEEN


def _digest_weights(model: Any) -> str:
    """Digest the weights, the optimizer's variables and the seeds of unbuilt layers."""
    values: list[Any] = [*model.weights, *private.seeds_of(model), *getattr(model.optimizer, "variables", ())]
    for layer in private.layers_of(model):
        attributes = vars(layer).copy().values()  # another thread may predict with the layer
        initializers = (one for one in attributes if isinstance(one, keras.initializers.Initializer))
        values += [seed for one in initializers if isinstance(seed := getattr(one, "seed", None), int)]
    return _digest(values)


class _FitDigest(ContentDigest):
    """A digest that also knows the objects of Keras and TensorFlow.

    If the data contain a file's path, the file is part of the data. Elsewhere a path says where to
    write, and does not count.
    """

    def __init__(self, is_data: bool = False, generators: list[Any] | None = None) -> None:
        super().__init__()
        self._is_data, self._generators = is_data, [] if generators is None else generators
        self._files = [FILES_READ_MAX, FILE_BYTES_READ_MAX]  # how many files, and bytes, are still read

    def pass_over(self, known: Iterable[Any]) -> None:
        for value in known:
            self._seen[-1][id(value)] = len(self._seen[-1])
            self._alive.append(value)

    def add_value(self, value: Any) -> None:
        is_text = isinstance(value, str | bytes | PurePath)
        if is_text and not self._is_data and names_path(os.fspath(value)):
            self.add_text("a path")
            return
        super().add_value(value)
        if is_text and self._is_data:
            self._add_file(os.fspath(value))

    def _add_file(self, name: str | bytes) -> None:
        """Add the file that a text in the data names, if any.

        Its content counts. Beyond FILES_READ_MAX and FILE_BYTES_READ_MAX, its size and time count.
        """
        if not 1 < len(name) <= PATH_CHARS:
            return
        name = os.fsdecode(name)
        if _REMOTE.match(name):
            self.is_whole = False
        if "\0" in name or not (os.sep in name or "." in name):
            return
        try:
            found = os.stat(name)  # noqa: PTH116
            if not stat.S_ISREG(found.st_mode):
                return
            self._files = [self._files[0] - 1, self._files[1] - found.st_size]
            if min(self._files) >= 0:
                with open(name, "rb") as file:  # noqa: PTH123
                    self._hash.update(file.read())
            else:
                self.add_text(f"{found.st_size} {found.st_mtime_ns}")
        except OSError:
            return

    def _add_content(self, value: Any) -> None:
        if private.is_random_generator(value):
            self._generators.append(value)
        if isinstance(value, keras.KerasTensor):
            self.add_text(f"{value.dtype} {value.shape}")
        elif isinstance(value, _SPECS):
            self.add_text(repr(value))
        elif isinstance(value, tf.summary.SummaryWriter | tf.distribute.Strategy):
            self.add_text(type(value).__qualname__)
        elif isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
            self.add_value(value.state)
        elif hasattr(type(value), "python_function"):  # a tf.function
            self.add_value(value.python_function)
        else:
            super()._add_content(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, tf.data.Dataset):
            self._add_dataset(value)
        elif isinstance(value, keras.Layer | tf.Module):
            self.add_value(settings_of(_own_config(value)) if isinstance(value, keras.Layer) else None)
            self.add_value(own_attributes(value))
            for variable in value.variables:
                self.add_value(variable)
        elif hasattr(type(value), "get_config"):
            self.add_value(settings_of(value))
            if isinstance(value, keras.optimizers.Optimizer):
                for variable in value.variables:
                    self.add_value(variable)
        else:
            super()._add_object(value)

    def _add_dataset(self, dataset: Any) -> None:
        """Add a dataset's operations, tensors and functions, without reading an element."""
        self.add_text(f"{type(dataset).__name__} {dataset.element_spec}")
        inputs, functions = dataset._inputs(), functions_of(dataset)
        for name, value in vars(dataset).items():
            if name in IGNORED_DATASET_ATTRIBUTES or any(value is one for one in inputs):
                continue
            if any(value is one for one in functions):
                self._add_tensor_function(value)
            elif isinstance(value, list | tuple):
                for item in value:
                    self._add_part(item)
            else:
                self._add_part(value)
        for one in inputs:
            self._add_dataset(one)

    def _add_part(self, value: Any) -> None:
        if isinstance(value, tf.Tensor) and value.dtype in (tf.resource, tf.variant):
            self.is_whole = False
        else:
            self.add_value(value)

    def _add_tensor_function(self, wrapper: Any) -> None:
        """Add the operations and constants of a function of `map` or the like.

        The names of inner functions differ from process to process, and so does their order in the
        library.
        """
        definition = wrapper.function.graph.as_graph_def()
        inner = [function.node_def for function in definition.library.function]
        self._hash.update(_digest_nodes(definition.node))
        for content in sorted(map(_digest_nodes, inner)):
            self._hash.update(content)
        variables = wrapper.function.graph.variables
        handles = {id(variable.handle) for variable in variables}
        for captured in wrapper.function.captured_inputs:
            if captured.dtype not in (tf.resource, tf.variant):
                self.add_value(captured)
            elif id(captured) not in handles:  # a table, or another dataset
                self.is_whole = False
        for variable in variables:
            self.add_value(variable)
        if any("PyFunc" in node.op for nodes in [definition.node, *inner] for node in nodes):
            self.add_value(wrapper._func)


# Attributes of an operation that differ from process to process, or name a function.
_NO_ATTRIBUTE = {"container", "shared_name", "token", "metadata"}


def _digest_nodes(nodes: Iterable[Any]) -> bytes:
    digest = xxhash.xxh3_128()
    numbers = {node.name: number for number, node in enumerate(nodes)}
    for node in nodes:
        sources = [one.lstrip("^").partition(":") for one in node.input]
        inputs = [f"{numbers.get(name, name)}{rest}" for name, _, rest in sources]
        digest.update(f"{len(node.op)}:{node.op}{inputs}".encode())
        for name, value in sorted(node.attr.items()):
            if (
                value.WhichOneof("value") != "func"
                and not value.list.func
                and name not in _NO_ATTRIBUTE
                and name[0] != "_"
            ):
                digest.update(name.encode() + value.SerializeToString(deterministic=True))
    return digest.digest()


# -- the decision ------------------------------------------------------------------------------------------------
class Recorded(msgspec.Struct, frozen=True):
    """The fit that a saved state describes."""

    number: int  # among the fits of the attempt that saved it
    is_over: bool
    keys: list[str]  # of all calls of that fit
    settings: Plain
    ended: list[str]  # keys of fits that had ended before

    @classmethod
    def from_place(cls, place: Plain, launch_s: float) -> Recorded:
        """Read what `place` says about its fit. `launch_s`: when this launch was asked for."""
        if "identity" not in place:
            raise UserError(
                "an older version of procsv saved the state, in a form that this one cannot read: start from the "
                "beginning in another directory, or with `procsv launch --new`"
            )
        is_over = place["over"] and has_ended(place, launch_s)
        return cls(place["fit"], is_over, list(place["keys"]), decode(place["identity"]), list(place["ended"]))


def has_ended(place: Plain, launch_s: float) -> bool:
    """Return whether the fit had ended when its state at `place` was saved.

    `stop` decides. "": yes, it reached its last epoch. "decided": yes, a callback ended it. "run":
    no, the run was ending. "asked" is an unexplained request, perhaps after a signal or for lack of
    time. It counts as the end until this launch is over. A later launch trains on, and the program
    decides again whether to stop.
    """
    is_same_launch = launch_s > 0.0 and place["launch"] == launch_s
    return place["stop"] in ("", "decided") or (place["stop"] == "asked" and is_same_launch)


class Decision(enum.Enum):
    """What to do with a fit that begins."""

    RESUME = "resumed"  # continue from the newest state
    ENDED = "ended"  # it has ended, and the newest state is its final state
    ENDED_EARLIER = "ended earlier"  # it ended before a later fit began; EndedFits may have its final state
    TRAIN = "fresh"  # train it from its beginning


def decide(recorded: Recorded | None, mine: FitIdentity, number: int, is_again: bool) -> tuple[Decision, str]:
    """Decide what to do with fit `number` of this attempt, and if it is trained, say why.

    `recorded` is None if there is no state. The reason is "" if there is none to tell. `is_again`:
    an exception ended this fit in this process, and the program calls it once more.
    """
    if recorded is None:
        return Decision.TRAIN, ""
    if mine.key in recorded.keys or (is_again and not recorded.is_over):
        if not recorded.is_over:
            return Decision.RESUME, ""
        return (Decision.ENDED, "") if mine.is_certain else (Decision.TRAIN, find_unseen(mine))
    if mine.key in recorded.ended:
        return Decision.ENDED_EARLIER, ""
    differences = [name for name in mine.settings if recorded.settings.get(name) != mine.settings[name]]
    # A state of an older version has fewer settings.
    changes = {name for name in differences if name in recorded.settings}
    if recorded.is_over:
        # The program asks for more epochs of this fit. With another number it would be another fit that starts alike.
        longer = recorded.number == number and differences == ["epochs"]
        longer = longer and mine.settings["epochs"] > recorded.settings["epochs"]
        if longer and mine.is_certain:
            return Decision.RESUME, ""
    elif recorded.number == number and changes <= {"code"}:
        return Decision.RESUME, ""  # the program was edited
    elif recorded.number == number == 1 and not changes & set(CONFIGURATION):
        # The first fit of an attempt was interrupted, so the next attempt reaches it first, and only things that may
        # change between starts differ: unseeded values, weights that a callback saved, the number of epochs, patience.
        return Decision.RESUME, ""
    return Decision.TRAIN, find_difference(recorded.settings, mine.settings)


def find_unseen_settings(mine: FitIdentity) -> list[str]:
    """Return the settings with content that cannot be seen, such as a schedule that closes over an
    open file, or the data of an iterator written in C.
    """
    return [name for name, value in mine.settings.items() if _UNSEEN in str(value)]


def find_unseen(mine: FitIdentity) -> str:
    """Say why a fit cannot be distinguished from another one."""
    unseen = find_unseen_settings(mine)
    return f"procsv cannot compare its {' and '.join(unseen)} with what the ended fit had"


def find_difference(before: Plain, now: Plain) -> str:
    """Describe the first setting that differs, or return "" if none does."""
    for name, value in now.items():
        other = before.get(name)
        if other == value:
            continue
        if name in ("layers", "callbacks") and isinstance(other, list) and len(other) == len(value):
            for number, ((kind, old), (new_kind, new)) in enumerate(zip(other, value, strict=True), 1):
                if kind != new_kind:
                    return _in_words(f"{name.rstrip('s')} {number}", kind, new_kind)
                if old != new:
                    return _first_setting(f"{kind} ({name.rstrip('s')} {number})", old, new)
        if isinstance(other, dict) and isinstance(value, dict):
            return _first_setting(name, other, value)
        return _in_words(name, other, value)
    return ""


def _first_setting(name: str, before: Plain, now: Plain) -> str:
    key = next(key for key in [*now, *before] if before.get(key) != now.get(key))
    return _in_words(f"{name} {key}".rstrip(), before.get(key), now.get(key))


def _in_words(name: str, before: Any, now: Any) -> str:
    is_digest = any(value == _UNSEEN or _DIGEST.fullmatch(str(value)) for value in (before, now))
    if is_digest or max(len(str(before)), len(str(now))) > _TEXT_MAX:
        return f"different {name}"
    return f"{name}: {before} then, {now} now"
