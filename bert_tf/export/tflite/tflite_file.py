"""Reads and checks the operators of a .tflite file."""

import collections
import functools

from tensorflow.lite.python import schema_py_generated as schema

from bert_tf.errors import UserError


def operators(content: bytes) -> collections.Counter[str]:
    """Counts the operators of a file.

    Custom operators have the name under which they are registered; the others
    have that of the schema, such as "FULLY_CONNECTED".
    """
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    names = [_name(code) for code in model.operatorCodes]
    return collections.Counter(
        names[operator.opcodeIndex]
        for subgraph in model.subgraphs
        for operator in subgraph.operators
    )


def custom_operators(content: bytes) -> set[str]:
    """Returns the operators that are not TensorFlow Lite's own."""
    return {name for name in operators(content) if name not in _builtins()}


def require_operators(content: bytes, text_operators: bool) -> None:
    """Checks that runtimes can run a file.

    Args:
      content: The file.
      text_operators: Whether TF-Text's operators are allowed.

    Raises:
      UserError: If the file has other custom operators.
    """
    custom = custom_operators(content)
    allowed = TEXT_OPERATORS if text_operators else frozenset()
    wrong = sorted(custom - allowed)
    if wrong:
        raise UserError(
            "The .tflite file must only have TensorFlow Lite's own operators"
            f"{' and those of TF-Text' if text_operators else ''}. "
            f"Received: {', '.join(wrong)}."
        )


# TF-Text's operators that tokenization needs.
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
    # Old and new files have the number in different fields.
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
