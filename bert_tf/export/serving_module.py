"""What is saved: a head around a model, as signatures.

Shapes:
  B: batch size.
  P: pieces of a text.
  T: pieces of a row.
  L: layers.
  N: attention heads.
"""

from collections.abc import Callable
from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.export import examples
from bert_tf.export import saved_graph
from bert_tf.export.computing import compute
from bert_tf.export.heads.head import Head

SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
FROM_IDS = "from_ids"
FROM_EXAMPLES = "from_examples"
TOKENIZE = "tokenize"
ATTENTION = "attention"
# What `Head.answer` returns for TensorFlow Serving's other interfaces alone.
_METHODS = {
    "classify": tf.saved_model.CLASSIFY_METHOD_NAME,
    "regress": tf.saved_model.REGRESS_METHOD_NAME,
}
_OUTPUTS_OF_METHOD = {
    "classify": ("classes", "scores"),
    "regress": ("outputs",),
}

_Tensors = Mapping[str, tf.Tensor]


class ServingModule:
    """The signatures of a model, and each of the weights that they read once.

    Args:
      head: What turns strings into the model's input and back.
      model: The model; its attention probabilities are among its outputs.
      ids_only: Whether to leave out all that reads strings.

    Attributes:
      signatures: By name.
      weights: The variables that they read.
    """

    def __init__(
        self, head: Head, model: keras.Model, ids_only: bool = False
    ) -> None:
        self._head = head
        self._model = model
        # In the graph once, though several signatures call it.
        self._answer = tf.function(
            self._answer_strings,
            input_signature=[head.input_specs()],
            autograph=False,
        )
        functions = self._ids_functions() if ids_only else self._functions()
        self.signatures = {
            name: trace(function, specs)
            for name, (function, specs) in functions.items()
        }
        self.weights = _variables(self.signatures.values())

    def save(self, directory: str) -> None:
        """Writes the SavedModel into a directory that need not be there."""
        saved = tf.Module()
        saved.weights = self.weights
        tf.saved_model.save(
            saved,
            directory,
            signatures=self.signatures,
            options=tf.saved_model.SaveOptions(
                # Of layers that are trained; nothing is here.
                experimental_custom_gradients=False
            ),
        )
        saved_graph.set_methods(
            directory,
            {
                name: _METHODS[name]
                for name in self.signatures
                if name in _METHODS
            },
        )

    def _ids_functions(self):
        return {SERVING: (self._from_ids_to_numbers, self._head.ids_specs())}

    def _functions(self):
        head = self._head
        strings = head.input_specs()
        functions = {
            SERVING: (self._serve, strings),
            FROM_IDS: (self._from_ids, head.ids_specs()),
            FROM_EXAMPLES: (
                self._from_examples,
                {"examples": examples.spec("examples")},
            ),
            TOKENIZE: (
                self._tokenize,
                {"text": tf.TensorSpec([None], tf.string, "text")},
            ),
        }
        if head.has_attention:
            functions[ATTENTION] = (self._attention, strings)
        if head.method:
            functions[head.method] = (
                self._serve_method,
                {"inputs": examples.spec("inputs")},
            )
        return functions

    def _answer_strings(self, strings: _Tensors) -> dict[str, tf.Tensor]:
        with tf.control_dependencies(check_rows(strings)):
            strings = {name: tf.identity(x) for name, x in strings.items()}
        rows = self._head.pack(strings)
        outputs = compute(
            self._model,
            rows.inputs,
            self._head.rows_at_once(rows.inputs),
            self._head.condense,
        )
        return self._head.answer(outputs, rows)

    def _serve(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        return for_predict(self._head, self._answer(strings))

    def _from_ids(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer_ids(self._head, self._model, inputs)

    def _from_ids_to_numbers(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return answer_ids_in_numbers(self._head, self._model, inputs)

    def _from_examples(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._serve(
            **examples.parse(inputs["examples"], self._head.input_specs())
        )

    def _serve_method(self, **inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        answer = self._answer(
            examples.parse(inputs["inputs"], self._head.input_specs())
        )
        return {x: answer[x] for x in _OUTPUTS_OF_METHOD[self._head.method]}

    def _tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return tokenize(self._head, text)

    def _attention(self, **strings: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `tokens` <string>[B, T] and `attention` [B, L, N, T, T]."""
        inputs = self._head.attention_rows(strings)
        tokens = self._head.tokenizer.tokens(inputs["input_ids"])
        return {
            "tokens": tf.where(inputs["input_mask"] > 0, tokens, ""),
            "attention": tf.cast(
                tf.stack(compute(self._model, inputs)["attention_probs"], 1),
                tf.float32,
            ),
        }


def for_predict(
    head: Head, answer: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns an answer without what is for other interfaces alone."""
    others = _OUTPUTS_OF_METHOD.get(head.method, ())
    return {x: t for x, t in answer.items() if x not in others}


def answer_ids(
    head: Head, model: keras.Model, inputs: _Tensors
) -> dict[str, tf.Tensor]:
    """Returns what those get who send ids.

    Args:
      head: The head.
      model: The model.
      inputs: A tensor of `Head.ids_specs` for each of their names.
    """
    rows = head.ids_rows(inputs)
    # However many there are: who sends them chooses, and a loop would be
    # more than other readers of SavedModels understand.
    answer = head.answer_ids(compute(model, rows.inputs), rows)
    return for_predict(head, answer)


def answer_ids_in_numbers(
    head: Head, model: keras.Model, inputs: _Tensors
) -> dict[str, tf.Tensor]:
    """Returns what `answer_ids` does but for strings, which others lack."""
    answer = answer_ids(head, model, inputs)
    return {x: t for x, t in answer.items() if t.dtype != tf.string}


def check_rows(strings: _Tensors) -> list[tf.Operation]:
    """Returns what fails unless all inputs have as many rows.

    One row would otherwise be taken for each of the other input's.

    Args:
      strings: A tensor for each of a head's inputs.
    """
    (name, first), *others = strings.items()
    return [
        tf.debugging.assert_equal(
            tf.shape(first)[0],
            tf.shape(other)[0],
            f"`{name}` and `{other_name}` must have as many rows.",
        )
        for other_name, other in others
    ]


def tokenize(head: Head, text: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the pieces of texts, without special ones, for debugging.

    Args:
      head: Says what the pieces are.
      text: <string>[B].

    Returns:
      `input_ids` <int32>[B, P], padded with [PAD]; `tokens` <string>[B, P],
      padded with ""; `starts` and `ends` <int32>[B, P], bytes of the text,
      padded with -1.
    """
    ids, starts, ends = head.tokenize_with_offsets(text)
    return {
        "input_ids": ids.to_tensor(head.tokenizer.vocabulary.pad_id),
        "tokens": head.tokenizer.tokens(ids).to_tensor(""),
        "starts": starts.to_tensor(-1),
        "ends": ends.to_tensor(-1),
    }


def trace(
    function: Callable[..., dict[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
):
    """Returns the graph of a function, whose outputs have their names.

    Args:
      function: Takes tensors by name, and returns such.
      specs: What it takes.
    """

    def named(**inputs):
        outputs = function(**inputs)
        return {name: tf.identity(x, name) for name, x in outputs.items()}

    return tf.function(named, autograph=False).get_concrete_function(**specs)


def _variables(functions) -> list[tf.Variable]:
    """Returns the variables that functions read, each once."""
    found = {}
    for function in functions:
        for variable in function.graph.variables:
            found[id(variable)] = variable
    return list(found.values())
