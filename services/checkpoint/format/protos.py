"""Define TensorFlow's protos for a checkpoint's index and for the `checkpoint` file.

They are built from descriptors, without TensorFlow, so that protobuf does the encoding.  Fields
that procsv neither reads nor writes are left out.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_FIELD = descriptor_pb2.FieldDescriptorProto
_INT, _INT64, _CRC = _FIELD.TYPE_INT32, _FIELD.TYPE_INT64, _FIELD.TYPE_FIXED32
_TEXT, _DOUBLE = _FIELD.TYPE_STRING, _FIELD.TYPE_DOUBLE

# (name, number, type or message); a field whose name ends with * is repeated.
_MESSAGES: dict[str, tuple[tuple[str, int, int | str], ...]] = {
    "CheckpointState": (
        ("model_checkpoint_path", 1, _TEXT),
        ("all_model_checkpoint_paths*", 2, _TEXT),
        ("all_model_checkpoint_timestamps*", 3, _DOUBLE),
        ("last_preserved_timestamp", 4, _DOUBLE),
    ),
    "Version": (("producer", 1, _INT),),
    "BundleHeader": (("num_shards", 1, _INT), ("version", 3, "Version")),
    "Dim": (("size", 1, _INT64),),
    "Shape": (("dim*", 2, "Dim"),),
    "Extent": (("start", 1, _INT64), ("length", 2, _INT64)),
    "Slice": (("extent*", 1, "Extent"),),
    "BundleEntry": (
        ("dtype", 1, _INT),
        ("shape", 2, "Shape"),
        ("shard_id", 3, _INT),
        ("offset", 4, _INT64),
        ("size", 5, _INT64),
        ("crc32c", 6, _CRC),  # masked
        # An entry with slices has the full tensor's dtype and shape; the slices have entries of their own.
        ("slices*", 7, "Slice"),
    ),
}


def _build() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="procsv/checkpoint.proto", package="procsv", syntax="proto3")
    for message, fields in _MESSAGES.items():
        proto = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = proto.field.add(name=name.rstrip("*"), number=number)
            field.label = _FIELD.LABEL_REPEATED if name.endswith("*") else _FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".procsv.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"procsv.{name}")) for name in _MESSAGES}


_classes = _build()
CheckpointState, BundleHeader, BundleEntry = (
    _classes[name] for name in ("CheckpointState", "BundleHeader", "BundleEntry")
)
