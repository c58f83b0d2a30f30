"""Tests of steps that XLA compiles, also in the form for GPUs on a CPU."""

import dataclasses
import functools
import re
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.distillation.objective import DistillationObjective
from bert_tf.distribute import batches as batches_lib
from bert_tf.distribute.batches import StepPlan
from bert_tf.errors import UserError
from bert_tf.finetuning.trial import FinetuneInput
from bert_tf.modeling import bert as bert_model
from bert_tf.tasks.multiple_choice.examples import Columns
from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.training import losses
from bert_tf.training import optimizer as optimizers
from bert_tf.training import xla
from bert_tf.training.losses import PretrainingObjective
from bert_tf.training.losses import TaskObjective
from bert_tf.training.step import TrainingStep
from bert_tf.training.xla import Compilation
from bert_tf.training.xla import compiled_functions
from tests.support import logical_devices
from tests.support import tiny_exports
from tests.support import tiny_model
from tests.support.step_trainer import StepTrainer

_LENGTHS = (8, 12)
_READ_POOLER = ("classification", "multiple_choice")
_FOR_DISTILLATION = {
    "return_all_layers": True,
    "return_embeddings": True,
    "return_attention_probs": True,
}


def _relabel(examples, **columns):
    """Returns examples with other values in some columns."""
    values = zip(*columns.values(), strict=True)
    return [
        dataclasses.replace(example, **dict(zip(columns, row, strict=True)))
        for example, row in zip(examples, values, strict=True)
    ]


def _texts():
    task = tiny_exports.classification(labels=("a", "b"))
    texts = ("cat", "the dog", "the cat sat on the mat . the cat", "mat")
    examples = [task.example_from_row(text) for text in texts]
    return task, _relabel(examples, label="abba")


def _words(**values):
    task = tiny_exports.tagging(labels=("O", "B-X"), **values)
    rows = [("cat", "mats"), ("dog",), ("the",) * 7, ("sat", "on")]
    tags = [("O", "B-X"), ("O",), ("B-X",) * 7, ("O", "B-X")]
    return task, _relabel(
        [task.example_from_row(list(row)) for row in rows], tags=tags
    )


def _questions():
    task = SquadTask(max_seq_length=12, doc_stride=2, max_query_length=3)
    rows = [("cat", "the dog")] * 3 + [("who", "the dog sat on the mat")]
    examples = [
        task.example_from_row({"question": question, "context": context})
        for question, context in rows
    ]
    return task, _relabel(
        examples,
        start_position=(1, 0, 0, 2),
        end_position=(1, 1, 0, 2),
        orig_answer_text=("dog", "the dog", "the", "sat"),
        is_impossible=(False,) * 4,
    )


def _choices():
    task = MultipleChoiceTask(
        name="custom", columns=Columns(("choices",)), max_seq_length=12
    )
    rows = [("cat", "dog"), ("mat", "the"), ("the cat sat " * 3, "dog")]
    rows.append(("on", "sat"))
    examples = [task.example_from_row({"choices": list(row)}) for row in rows]
    return task, _relabel(examples, label=(0, 1, 1, 0))


TASKS = {
    "classification": _texts,
    "tagging": _words,
    "tagging_with_lstms": lambda: _words(head="bilstm", lstm_size=3),
    "squad": _questions,
    "multiple_choice": _choices,
    "distillation": _texts,
}


class TaskTrainer:
    """A model of a task, its training data and its training loop.

    Args:
      name: One of `TASKS`.
      xla_flag: `--xla`.
      kind: The kind of device that the step is compiled for.
    """

    _BATCH = 2
    _STEPS = 4

    def __init__(self, name, xla_flag="auto", kind="CPU"):
        task, examples = TASKS[name]()
        tokenizer = tiny_model.tokenizer()
        features = task.featurize(examples, tokenizer, True)
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        source = FinetuneInput(
            features, self._BATCH, 5, self._STEPS, _LENGTHS, 2
        )
        self.row_shapes = source.row_shapes()
        teaches = name == "distillation"
        model_arguments = {"fuse": xla_flag != "off"}
        config = tiny_model.ONE_LAYER
        if teaches:
            model_arguments |= _FOR_DISTILLATION
            config = tiny_model.CONFIG  # Distillation pairs layers of both.
        with strategy.scope():
            model = self._build(task, config, model_arguments, 3)
            objective = TaskObjective(task)
            if teaches:
                objective = DistillationObjective(
                    task,
                    self._build(task, config, model_arguments, 4),
                    types.SimpleNamespace(
                        distillation_weight=0.5,
                        hidden_weight=1.0,
                        attention_weight=1.0,
                        temperature=2.0,
                        hidden_loss="mse",
                    ),
                    (1, 2),
                )
            self._variables = {
                name: variable
                for name, variable in bert_model.named_variables(model).items()
                if task.kind in _READ_POOLER or "/pooler/" not in name
            }
            optimizer = optimizers.build_optimizer("bert_adam", 1e-3, 10)
            optimizer.build(list(self._variables.values()))
        plan = StepPlan(self._BATCH)
        self.training_step = TrainingStep(
            strategy,
            model,
            objective,
            optimizer,
            plan,
            compilation=xla.Compilation(xla_flag, kind, self.row_shapes),
        )
        iterator = batches_lib.distribute_batches(
            strategy, source.dataset(0), plan
        )
        self.losses = [
            self.training_step.run(iterator, 1)[1]["loss"]
            for _ in range(self._STEPS)
        ]

    def _build(self, task, config, arguments, seed):
        model = tiny_model.TASK_MODELS[task.kind](
            config, **task.model_arguments() | arguments
        )
        rng = np.random.default_rng(seed)
        for variable in bert_model.named_variables(model).values():
            variable.assign(rng.normal(size=variable.shape, scale=0.3))
        return model

    def weights(self):
        """Returns the weights by canonical name."""
        return {name: v.numpy() for name, v in self._variables.items()}


logical_devices.make()

# Softmax ignores a number that is added to all of its arguments, so these
# gradients are only rounding, which Adam turns into whole steps.
_WITHOUT_GRADIENT = (
    "/key/bias",
    "cls/multiple_choice/output_bias",
    "cls/squad/output_bias",
)


def _graphs_of_steps():
    """Patches the training step to collect the graphs of a device's step."""
    graphs = []
    original = TrainingStep._replica_gradients

    def compute(self, *args):
        graphs.append(tf.compat.v1.get_default_graph())
        return original(self, *args)

    patch = mock.patch.object(TrainingStep, "_replica_gradients", compute)
    return patch, graphs


class ChooseTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("off", "CPU", "off"),
        ("auto", "CPU", "chains"),
        ("on", "CPU", "step"),
        ("auto", "GPU", "step"),
        ("on", "GPU", "step"),
        ("auto", "TPU", "step"),
        ("on", "TPU", "step"),
    )
    def test_chooses_by_flag_and_device(self, flag, kind, expected):
        self.assertEqual(xla.choose(flag, kind), expected)

    def test_a_deterministic_gpu_compiles_the_step_only_on_demand(self):
        self.assertEqual(xla.choose("auto", "GPU", True), "chains")
        self.assertEqual(xla.choose("on", "GPU", True), "step")

    def test_a_tpu_refuses_xla_off(self):
        with self.assertRaisesRegex(UserError, "--xla=off"):
            xla.choose("off", "TPU")

    @parameterized.parameters(
        ("on", 0, 4), ("on", 2, 0), ("auto", 0, 0), ("off", 0, 0)
    )
    def test_a_compiled_step_has_few_lengths(self, flag, buckets, expected):
        self.assertEqual(xla.max_lengths(flag, "CPU", True, buckets), expected)
        self.assertEqual(xla.max_lengths("auto", "GPU", False, 0), 4)


class _TestCase(tf.test.TestCase, parameterized.TestCase):
    def assert_same_weights(self, received, expected):
        for name, value in expected.items():
            if not any(part in name for part in _WITHOUT_GRADIENT):
                # Adam amplifies small differences, up to 1.3e-5.
                self.assertAllClose(received[name], value, 3e-5, 3e-5, name)

    def assert_compiles(self, graphs):
        """Checks that nothing in a step has an unknown shape or a string."""
        self.assertNotEmpty(graphs)
        for graph in graphs:
            # Gradients compute the axes to sum over, but XLA knows these when
            # it compiles, so skip them.
            tensors = [
                tensor
                for op in graph.get_operations()
                if not op.name.startswith("gradient_tape/")
                for tensor in op.outputs
            ]
            self.assertNotEmpty(tensors)
            for tensor in tensors:
                self.assertNotEqual(tensor.dtype, tf.string, tensor.name)
                self.assertTrue(
                    tensor.shape.is_fully_defined(),
                    f"{tensor.name} {tensor.shape}",
                )


@pytest.mark.slow
class PretrainingTest(_TestCase):
    def _train(self, flag, **options):
        options["model_arguments"] = {"fuse": flag != "off"}
        trainer = StepTrainer(
            compilation=Compilation(flag), learning_rate=1e-3, **options
        )
        return trainer.train(1, 1, 1)

    def _compare(self, tolerance=1e-5, **options):
        """Trains with and without XLA; returns both trainers."""
        expected = self._train("off", **options)
        self.assertEqual(
            expected.training_step.compiled, "XLA (--xla=off, CPU): nothing."
        )
        patch, graphs = _graphs_of_steps()
        with patch:
            received = self._train("on", **options)
        self.assertIn("a device (1 program)", received.training_step.compiled)
        self.assertIn("updates of the weights", received.training_step.compiled)
        self.assert_compiles(graphs)
        self.assertAllClose(
            received.metrics, expected.metrics, tolerance, tolerance
        )
        return received, expected

    def test_compiled_steps_are_the_same_steps(self):
        received, expected = self._compare()
        self.assert_same_weights(received.state(), expected.state())

    @pytest.mark.thorough
    def test_micro_batches_give_the_same_weights(self):
        received, expected = self._compare(max_micro_batch_size=2)
        self.assert_same_weights(received.state(), expected.state())

    def test_logical_devices_of_a_cpu_are_refused(self):
        with self.assertRaisesRegex(UserError, "for 2 logical devices"):
            self._train("on", devices=2)

    @parameterized.parameters("mixed_float16", "mixed_bfloat16")
    @pytest.mark.thorough
    def test_half_precision_stays_near_uncompiled_steps(self, policy):
        # XLA keeps some intermediate values in float32, so results differ.
        self._compare(2e-2, policy=policy)


class TasksTest(_TestCase):
    # Taggers with LSTMs do all that other taggers do, so skip the others.
    @parameterized.parameters(*sorted(TASKS.keys() - {"tagging"}))
    @pytest.mark.thorough
    def test_every_task_has_a_program_for_each_length(self, name):
        expected = TaskTrainer(name, "off")
        patch, graphs = _graphs_of_steps()
        with patch:
            received = TaskTrainer(name, "on")
        self.assertLen(received.row_shapes, 2)
        self.assertLen(graphs, 2)
        self.assertIn("a device (2 programs)", received.training_step.compiled)
        self.assert_compiles(graphs)
        self.assertAllClose(received.losses, expected.losses, 1e-5, 1e-5)
        self.assert_same_weights(received.weights(), expected.weights())


_ON_GPU = mock.patch.object(losses, "overwrites_logits", lambda: False)


def _build(**options):
    return StepTrainer(compilation=Compilation("auto", "GPU"), **options)


@functools.cache
def _trained(**options):
    """Returns a trainer after three steps."""
    with _ON_GPU:
        return _build(learning_rate=1e-3, **options).train(1, 2)


def _trace(trainer):
    """Returns the graph of a call."""
    run = trainer.training_step._run
    return run.get_concrete_function(
        trainer.iterator, tf.TensorSpec([], tf.int32)
    ).graph


def _loop(graph):
    """Returns condition and body of the loop over steps, as `FunctionDef`s."""
    (loop,) = (op for op in graph.get_operations() if "While" in op.type)
    functions = {
        function.signature.name: function
        for function in graph.as_graph_def().library.function
    }
    return [functions[loop.get_attr(part).name] for part in ("cond", "body")]


@pytest.mark.slow
class GpuStepTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {}, {"max_micro_batch_size": 2, "optimizer": "lamb"}
    )
    def test_equals_the_step_of_a_cpu(self, **options):
        received = _trained(**options)
        expected = StepTrainer(learning_rate=1e-3, **options).train(1, 2)
        self.assertEqual(
            received.training_step.compiled,
            "XLA (--xla=auto, GPU): the whole step of a device (1 program), "
            "collectives outside; the updates of all weights, in one program.",
        )
        self.assertAllClose(received.metrics, expected.metrics, 1e-5, 1e-5)
        state = expected.state()
        for name, value in received.state().items():
            if "/key/bias" not in name:
                self.assertAllClose(value, state[name], 3e-5, 3e-5, name)

    @pytest.mark.thorough
    def test_float16_skips_an_overflow(self):
        trained = _trained(policy="mixed_float16")
        scale = trained.training_step.loss_scale
        scale.restore({"loss_scale": 2.0**60, "calm_steps": 9})
        before = trained.state()
        trained.train(1)
        self.assertTrue(trained.is_finite)
        after = trained.state()
        self.assertEqual(after.pop("global_step"), before["global_step"] + 1)
        for name, value in after.items():
            self.assertAllEqual(value, before[name], name)
        self.assertEqual(scale.state()["loss_scale"], 2.0**59)

    def test_a_call_has_few_operations_and_reads_nothing_back(self):
        graph = _trace(_trained())
        condition, body = _loop(graph)
        # Counts stay on the host; a flag would come from the device.
        self.assertEqual(
            {node.op for node in condition.node_def}, {"Less", "Identity"}
        )
        self.assertLess(len(body.node_def), 40)
        compiled = set(compiled_functions(graph))
        launched = [
            node.attr["f"].func.name
            for node in body.node_def
            if node.attr["f"].func.name in compiled
        ]
        self.assertLen(launched, 3)  # Counts, gradients and updates.

    def test_scatters_nothing_but_the_gradient_of_the_word_table(self):
        with _ON_GPU:
            trainer = _build(policy="mixed_bfloat16")
            step = trainer.training_step
            program = tf.function(
                step._replica_step, jit_compile=True, autograph=False
            )
            lower = program.experimental_get_compiler_ir(
                next(trainer.iterator),
                tf.constant(True),
                dict.fromkeys(step._metric_names, tf.constant(0.0)),
            )
        scattered = re.findall(r"= (\S+) scatter\(", lower(stage="hlo"))
        # The table has 64 words of width 8; nothing else may be scattered.
        self.assertLen(scattered, 1, scattered)
        self.assertStartsWith(scattered[0], "f32[64,8]")

    @pytest.mark.thorough
    def test_a_task_has_a_program_for_each_length(self):
        expected = TaskTrainer("classification")
        received = TaskTrainer("classification", kind="GPU")
        self.assertIn("(2 programs)", received.training_step.compiled)
        self.assertAllClose(received.losses, expected.losses, 1e-5, 1e-5)

    def test_several_gpus_compile_collectives_only_on_demand(self):
        auto, on = Compilation("auto", "GPU"), Compilation("on", "GPU")
        self.assertFalse(auto.includes_collectives(8))
        self.assertTrue(on.includes_collectives(8))
        self.assertFalse(on.includes_collectives(1))
        self.assertFalse(Compilation("on", "CPU").includes_collectives(8))


class _Uncompilable(PretrainingObjective):
    """The pretraining losses, in a way that XLA cannot compile."""

    def compute_sums(self, outputs, rows):
        sums = super().compute_sums(outputs, rows)
        loss = sums["masked_lm_sum"]
        number = tf.strings.to_number(tf.strings.as_string(loss))
        return sums | {"masked_lm_sum": tf.where(number > -1.0, loss, 0.0)}


@pytest.mark.slow
class FallbackTest(tf.test.TestCase):
    def _train(self, compilation):
        return StepTrainer(compilation=compilation, objective=_Uncompilable)

    def test_a_step_that_does_not_compile_is_computed_without(self):
        trainer = self._train(Compilation("auto", "GPU"))
        before = trainer.state()
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            trainer.train(1)
        with self.assertLogs(level="WARNING") as logs:
            self.assertTrue(trainer.training_step.recover(caught.exception))
        self.assertLen(logs.output, 1)
        self.assertIn("only its chains are compiled", logs.output[0])
        self.assertIn("slower (Detected unsupported op", logs.output[0])
        for name, value in trainer.state().items():
            self.assertAllEqual(value, before[name], name)

        trainer.read_again().train(1, 2)
        self.assertIn("updates of the weights", trainer.training_step.compiled)
        expected = self._train(Compilation()).train(1, 2)
        self.assertEqual(trainer.metrics, expected.metrics)
        # The step already compiles as little as possible, so it gives up.
        self.assertFalse(trainer.training_step.recover(caught.exception))

        # Any step may bring and compile a new shape, so errors may come late.
        later = _build().train(1).training_step
        other = tf.errors.InternalError(None, None, "cuBLAS launch failed")
        self.assertFalse(later.recover(other))
        later._is_updating.assign(True)
        self.assertFalse(later.recover(caught.exception))
        later._is_updating.assign(False)
        self.assertTrue(later.recover(caught.exception))

    def test_an_error_of_collectives_ends_the_run(self):
        error = tf.errors.InternalError(
            None,
            None,
            "Graph execution error:\n\nDetected at node Reduce defined at\n"
            "<stack traces unavailable>\nNCCL operation ncclAllReduce failed",
        )
        for flag in ("auto", "on"):
            step = StepTrainer(
                devices=2, compilation=Compilation(flag, "GPU")
            ).training_step
            self.assertFalse(step.recover(error), flag)

    def test_programs_that_the_gpu_cannot_have_are_no_obstacle(self):
        for error_class, message in (
            (
                tf.errors.UnavailableError,
                "No PTX compilation provider is available.",
            ),
            (
                tf.errors.ResourceExhaustedError,
                "Shared memory size limit exceeded: requested 163840",
            ),
        ):
            error = error_class(None, None, message)
            self.assertTrue(_build().training_step.recover(error), message)

    def test_recovers_from_no_other_device_or_error(self):
        on_cpu = self._train(Compilation("on")).training_step
        compiler = tf.errors.InvalidArgumentError(None, None, "unsupported")
        self.assertFalse(on_cpu.recover(compiler))
        on_gpu = self._train(Compilation("auto", "GPU")).training_step
        for error in (
            tf.errors.DataLossError(
                None, None, "corrupted record [[{{node IteratorGetNext}}]]"
            ),
            tf.errors.ResourceExhaustedError(None, None, "No space left"),
            tf.errors.InvalidArgumentError(
                None, None, "Key: input_ids. [[{{node IteratorGetNext}}]]"
            ),
        ):
            self.assertFalse(on_gpu.recover(error))


@pytest.mark.thorough
class AllReduceTest(tf.test.TestCase):
    def test_gradients_are_exchanged_in_bfloat16(self):
        options = {"dropout": 0.0, "batch_size": 6}
        # TensorFlow fixes a collective's dtype for a set of devices, so no
        # other test may use this set.
        trainer = StepTrainer(
            devices=3, all_reduce_dtype="bfloat16", **options
        ).train(1, 3)
        _, body = _loop(_trace(trainer))
        dtypes = {
            tf.as_dtype(node.attr["T"].type).name
            for node in body.node_def
            if node.op == "CollectiveReduceV2"
        }
        # Counts and losses must stay exact, so they are summed in float32.
        self.assertEqual(dtypes, {"bfloat16", "float32"})
        expected = StepTrainer(**options).train(1, 3)
        for one, other in zip(trainer.metrics, expected.metrics, strict=True):
            self.assertAllClose(one["loss"], other["loss"], 1e-2)
        # Each gradient is rounded to 8 bits, so the norms differ slightly.
        norms = np.array(
            [t.metrics[0]["grad_norm"] for t in (trainer, expected)]
        )
        self.assertNotEqual(*norms)
        self.assertAllClose(*norms, 4e-3)


if __name__ == "__main__":
    tf.test.main()
