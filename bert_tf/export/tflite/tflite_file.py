"""What stands in a .tflite file."""

import collections
import functools

from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.errors import UserError


def operators(content: bytes) -> collections.Counter[str]:
    """Returns how often each operator stands in a file.

    Custom operators have the name that they register with; the others that of
    the schema, such as "FULLY_CONNECTED".
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = [_name(code) for code in model.operatorCodes]
    return collections.Counter(
        names[operator.opcodeIndex]
        for subgraph in model.subgraphs
        for operator in subgraph.operators
    )


def custom_operators(content: bytes) -> set[str]:
    """Returns the operators that are none of TensorFlow Lite's own."""
    return {name for name in operators(content) if name not in _builtins()}


def require_operators(content: bytes, text_operators: bool) -> None:
    """Checks that runtimes can run a file.

    Args:
      content: The file.
      text_operators: Whether TF-Text's operators are allowed.

    Raises:
      UserError: If they cannot.
    """
    custom = custom_operators(content)
    allowed = TEXT_OPERATORS if text_operators else frozenset()
    wrong = sorted(custom - allowed)
    if wrong:
        raise UserError(
            "The .tflite file must have TensorFlow Lite's own operators"
            f"{' and those of TF-Text' if text_operators else ''} only. "
            f"Received: {', '.join(wrong)}."
        )


# Those of them that tokenization needs.
TEXT_OPERATORS = frozenset(
    {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
        "RaggedTensorToTensor",
    }
)


def _name(code) -> str:
    if code.customCode:
        return code.customCode.decode()
    # Old files have the number in the one field, new ones in the other.
    return _builtins_by_number()[
        max(code.builtinCode, code.deprecatedBuiltinCode)
    ]


@functools.cache
def _builtins_by_number() -> dict[int, str]:
    return {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if isinstance(number, int)
    }


@functools.cache
def _builtins() -> frozenset[str]:
    return frozenset(_builtins_by_number().values())
