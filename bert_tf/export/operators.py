"""The operators of a SavedModel, and the servers that can run them.

Stock images of TensorFlow Serving link the operators of TensorFlow and of one
version of TensorFlow Text (`SUPPORTED_TENSORFLOW_OPS` in model_servers/BUILD):
2.12.1 from Serving 2.12 up to 2.19.1, 2.20.0 from Serving 2.20 on.
"""

import collections
import functools
import pathlib
import re
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

from tensorflow.core.protobuf import meta_graph_pb2

from bert_tf.export import graph_file

# The oldest supported TensorFlow Serving.
OLDEST_SERVING = (2, 12)
# The operators of its TensorFlow; tools/list_operators.py makes the file.
_CORE_FILE = pathlib.Path(__file__).with_name("tensorflow_2_12_operators.txt")
_SINCE_2_12 = """
CaseFoldUTF8 ConstrainedSequence FastBertNormalize
FastWordpieceTokenizeWithOffsets FindSourceOffsets MaxSpanningTree
NormalizeUTF8 NormalizeUTF8WithOffsetsMap PhraseTokenize
RegexSplitWithOffsets RougeL SentenceFragments SentenceFragmentsV2
SentencepieceDetokenizeOp SentencepieceIdToStringOp SentencepieceOp
SentencepieceStringToIdOp SentencepieceTokenizeOp
SentencepieceTokenizeWithOffsetsOp SentencepieceVocabSizeOp
SplitMergeTokenizeWithOffsets TFText>BoiseTagsToOffsets
TFText>ByteSplitByOffsets TFText>ByteSplitWithOffsets
TFText>FastSentencepieceDetokenize TFText>FastSentencepieceTokenize
TFText>FastWordpieceDetokenize TFText>NgramsStringJoin
TFText>OffsetsToBoiseTags TFText>PhraseDetokenize
TFText>WhitespaceTokenizeWithOffsetsV2 TokenizerFromLogits
UnicodeScriptTokenizeWithOffsets WhitespaceTokenizeWithOffsets
WordpieceTokenizeWithOffsets
"""
_SINCE_2_20 = """
TFText>RoundRobinGenerateMasks TFText>RoundRobinTrim TFText>Utf8Binarize
"""
# TF-Text operator to the first TensorFlow Serving release known to link it.
TEXT_OPERATORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_SINCE_2_12.split(), (2, 12)),
    **dict.fromkeys(_SINCE_2_20.split(), (2, 20)),
}
# Operators to refuse although TensorFlow Serving runs them, with the reason.
_REFUSED = (
    (r"Erfc", "tf2onnx writes files with it that nothing reads"),
    (r"Einsum", "readers of other projects refuse it"),
    (r".*(Random|Multinomial|Dropout|TruncatedNormal).*", "it is for training"),
    (r"(Eager)?PyFunc(Stateless)?", "it needs this Python process"),
    (r".*HashTable.*|LookupTable.*|InitializeTable.*", "tables need assets"),
)
_COMPILED = "_XlaMustCompile"


def read(version_directory: str) -> collections.Counter[str]:
    """Counts the operators of a SavedModel; function calls do not count.

    Raises:
      UserError: If the SavedModel cannot be read.
    """
    return _count(graph_file.read(version_directory))


def _count(meta_graph: meta_graph_pb2.MetaGraphDef) -> collections.Counter[str]:
    library = meta_graph.graph_def.library
    own = {function.signature.name for function in library.function}
    counts = collections.Counter(node.op for node in _nodes(meta_graph))
    return collections.Counter(
        {name: counts[name] for name in sorted(counts) if name not in own}
    )


def find_faults(version_directory: str) -> list[str]:
    """Returns the reasons why TensorFlow Serving 2.12 cannot run an export.

    Returns:
      Sentences without periods; [] if it can.

    Raises:
      UserError: If the SavedModel cannot be read.
    """
    meta_graph = graph_file.read(version_directory)
    faults = _faults_of_names(_count(meta_graph))
    if any(
        _COMPILED in part.attr and part.attr[_COMPILED].b
        for part in (
            *meta_graph.graph_def.library.function,
            *_nodes(meta_graph),
        )
    ):
        faults.append(
            "a function must be compiled by XLA, which few servers link"
        )
    if meta_graph.asset_file_def:
        faults.append("it reads asset files, and an export must have none")
    return faults


def oldest_serving(operators: Collection[str]) -> str:
    """Returns the first TensorFlow Serving release that links operators."""
    oldest = max(
        (TEXT_OPERATORS.get(name, OLDEST_SERVING) for name in operators),
        default=OLDEST_SERVING,
    )
    return ".".join(map(str, oldest))


def has_text_operators(operators: Collection[str]) -> bool:
    """Returns whether any operator is from TensorFlow Text."""
    return not TEXT_OPERATORS.keys().isdisjoint(operators)


def _faults_of_names(operators: Collection[str]) -> list[str]:
    faults = []
    for name in operators:
        first = TEXT_OPERATORS.get(name)
        reason = next(
            (why for names, why in _REFUSED if re.fullmatch(names, name)), None
        )
        if reason is not None:
            faults.append(f"it has the operator {name}, but {reason}")
        elif first is not None and first > OLDEST_SERVING:
            faults.append(
                f"it has the operator {name}, which only TensorFlow Serving "
                f"{'.'.join(map(str, first))} and later link"
            )
        elif first is None and name not in _core_operators():
            faults.append(
                f"it has the operator {name}, which TensorFlow 2.12 does not "
                "have and which is not in TEXT_OPERATORS"
            )
    return faults


@functools.cache
def _core_operators() -> frozenset[str]:
    lines = _CORE_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def _nodes(meta_graph: meta_graph_pb2.MetaGraphDef) -> Iterator:
    yield from meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield from function.node_def
