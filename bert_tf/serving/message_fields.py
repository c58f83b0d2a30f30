"""The number of fields of a serialized protocol buffer, before it is decoded.

An object for each field would take far more memory than the bytes do.
"""

import functools

from google.protobuf import descriptor

from bert_tf.serving import errors

NO_PROTO = "The message is not a valid proto."
# Fields of smaller messages need not be counted.
COUNTED_BYTES = 1 << 14
# Packed integers that count as a field.
_NUMBERS_PER_FIELD = 8
_FIXED_SIZES = {1: 8, 5: 4}
_FIELD = descriptor.FieldDescriptor
# Fields that take no more memory than their bytes.
_FLAT = (_FIELD.CPPTYPE_STRING, _FIELD.CPPTYPE_FLOAT, _FIELD.CPPTYPE_DOUBLE)
# Bytes of a varint before its last one.
_WITHOUT_END = bytes(range(128, 256))


@functools.cache
def _kinds(kind: descriptor.Descriptor) -> dict:
    """Returns the types of submessages by number; None for packed integers."""
    return {
        field.number: field.message_type
        for field in kind.fields
        if field.cpp_type not in _FLAT
    }


def count_fields(
    content: bytes, kind: descriptor.Descriptor, limit: int
) -> int:
    """Returns the number of fields of a serialized message, nested ones, too.

    An empty field takes 2 bytes, and its object more than 100.

    Raises:
      RequestError: If there are too many, or it is not a message.
    """
    count = 0
    parts = [(kind, 0, len(content))]

    def varint(position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = content[position]
            value |= (byte & 127) << shift
            position += 1
            shift += 7
            if byte < 128 or shift == 70:
                return value, position

    while parts:
        kind, position, end = parts.pop()
        kinds = _kinds(kind)
        while position < end:
            count += 1
            try:
                tag, position = varint(position)
                wire_type = tag & 7
                size = _FIXED_SIZES.get(wire_type)
                if size is None:
                    size, position = varint(position)
            except IndexError:
                raise errors.invalid(NO_PROTO) from None
            if wire_type == 0:  # `size` is a number.
                size = 0
            elif wire_type == 2 and tag >> 3 in kinds:
                child = kinds[tag >> 3]
                if child is not None:
                    parts.append((child, position, position + size))
                else:
                    numbers = content[position : position + size]
                    ends = len(numbers.translate(None, _WITHOUT_END))
                    count += ends // _NUMBERS_PER_FIELD
            elif wire_type not in _FIXED_SIZES and wire_type != 2:
                raise errors.invalid(NO_PROTO)  # A group; none has any.
            position += size
            if count > limit:
                raise errors.TooLargeError(
                    "The message", limit, "fields", "max_message_fields"
                )
        if position > end:
            raise errors.invalid(NO_PROTO)
    return count
