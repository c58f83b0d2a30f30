"""Runs the Model Garden's own models in a separate process.

They need tf_keras, which cannot be used in one process with Keras 3.

  python model_garden_maker.py DIRECTORY

The inputs are DIRECTORY/inputs.npz and DIRECTORY/bert_config.json. For each
function in `MADE` a checkpoint of a model with random weights is written to
DIRECTORY/NAME, with the model's outputs in DIRECTORY/NAME/outputs.npz; each
in `READ` reads the checkpoint DIRECTORY/NAME and writes the outputs there.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
import tf_keras
from official.modeling import tf_utils
from official.nlp.modeling import layers
from official.nlp.modeling import models
from official.nlp.modeling import networks

DIRECTORY = sys.argv[1]
PREFIX = "bert_model.ckpt"

with open(os.path.join(DIRECTORY, "bert_config.json")) as config_file:
    CONFIG = json.load(config_file)
with np.load(os.path.join(DIRECTORY, "inputs.npz")) as arrays:
    POSITIONS = tf.constant(arrays["masked_lm_positions"])
    INPUTS = {
        "input_word_ids": tf.constant(arrays["input_ids"]),
        "input_mask": tf.constant(arrays["input_mask"]),
        "input_type_ids": tf.constant(arrays["segment_ids"]),
    }


def encoder(cls=networks.BertEncoderV2, activation=None):
    if activation is None:
        activation = tf_utils.get_activation(CONFIG["hidden_act"])
    result = cls(
        vocab_size=CONFIG["vocab_size"],
        hidden_size=CONFIG["hidden_size"],
        num_layers=CONFIG["num_hidden_layers"],
        num_attention_heads=CONFIG["num_attention_heads"],
        max_sequence_length=CONFIG["max_position_embeddings"],
        type_vocab_size=CONFIG["type_vocab_size"],
        inner_dim=CONFIG["intermediate_size"],
        inner_activation=activation,
    )
    result(result.inputs)
    return result


def pretrainer(activation=None, other_head=False):
    heads = [
        layers.ClassificationHead(
            inner_dim=CONFIG["hidden_size"], num_classes=2, name=name
        )
        for name in (["other"] if other_head else []) + ["next_sentence"]
    ]
    if activation is None:
        activation = tf_utils.get_activation(CONFIG["hidden_act"])
    model = models.BertPretrainerV2(
        encoder(activation=activation),
        mlm_activation=activation,
        classification_heads=heads,
    )
    model(INPUTS | {"masked_lm_positions": POSITIONS})
    return model


def randomized(model, seed):
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(scale=0.4, size=variable.shape))
    return model


def run_encoder(model):
    names = ("sequence_output", "pooled_output")
    if isinstance(model, networks.BertEncoder):
        outputs = model(list(INPUTS.values()))
        return dict(zip(names, outputs, strict=True))
    outputs = model(INPUTS)
    return {name: outputs[name] for name in names}


def run_pretrainer(model):
    outputs = model(INPUTS | {"masked_lm_positions": POSITIONS})
    sequence_output = outputs["sequence_output"]
    # This pooler is trained, not the encoder's.
    pooler = model.classification_heads[-1].dense
    return {
        "sequence_output": sequence_output,
        "pooled_output": pooler(sequence_output[:, 0]),
        "masked_lm_logits": outputs["mlm_logits"],
        "next_sentence_logits": outputs["next_sentence"],
    }


def checkpoint_of(model):
    return tf.train.Checkpoint(model=model, **model.checkpoint_items)


# === Checkpoints of the Model Garden ===


def made_encoder(prefix):
    model = randomized(encoder(), 1)
    tf.train.Checkpoint(encoder=model).write(prefix)
    return run_encoder(model)


def made_functional_encoder(prefix):
    model = randomized(encoder(networks.BertEncoder), 2)
    tf.train.Checkpoint(model=model).save(prefix)
    return run_encoder(model)


def made_encoder_of_2020(prefix):
    """Writes a checkpoint with the names of releases in 2020."""
    model = randomized(encoder(networks.BertEncoder), 3)
    old = tf.Module()
    parts = [
        model._embedding_layer,
        model._position_embedding_layer,
        model._type_embedding_layer,
        model._embedding_norm_layer,
        *map(_layer_of_2020, model.transformer_layers),
        model.pooler_layer,
    ]
    for number, part in enumerate(parts):
        setattr(old, f"layer_with_weights-{number}", part)
    tf.train.Checkpoint(encoder=old).write(prefix)
    return run_encoder(model)


def _layer_of_2020(layer):
    old = tf.Module()
    attention = layer._attention_layer
    old._attention_layer = tf.Module()
    for name in ("_query_dense", "_key_dense", "_value_dense"):
        setattr(old._attention_layer, name, getattr(attention, name))
    old._attention_output_dense = attention._output_dense
    for name in (
        "_attention_layer_norm",
        "_intermediate_dense",
        "_output_dense",
        "_output_layer_norm",
    ):
        setattr(old, name, getattr(layer, name))
    return old


def made_pretrainer(prefix):
    model = randomized(pretrainer(), 4)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(
        model=model,
        optimizer=optimizer,
        global_step=optimizer.iterations,
        **model.checkpoint_items,
    ).save(prefix)
    return run_pretrainer(model)


def made_pretrainer_items(prefix):
    """Writes a checkpoint to initialize models: no next-sentence logits."""
    model = randomized(pretrainer(), 5)
    tf.train.Checkpoint(**model.checkpoint_items).write(prefix)
    outputs = run_pretrainer(model)
    del outputs["next_sentence_logits"]
    return outputs


def made_pretrainer_with_other_head(prefix):
    model = randomized(pretrainer(other_head=True), 6)
    checkpoint_of(model).write(prefix)
    return {}


def made_older_pretrainer(prefix):
    inner = encoder(networks.BertEncoder)
    length = POSITIONS.shape[1]
    model = models.BertPretrainer(
        inner,
        num_classes=2,
        num_token_predictions=length,
        activation=tf_utils.get_activation(CONFIG["hidden_act"]),
    )
    randomized(model, 7)
    tf.train.Checkpoint(model=model).write(prefix)
    outputs = model([*INPUTS.values(), POSITIONS])
    return {
        **run_encoder(inner),
        "masked_lm_logits": outputs["masked_lm"],
        "next_sentence_logits": outputs["classification"],
    }


def made_classifier(prefix):
    model = randomized(models.BertClassifier(encoder(), num_classes=3), 8)
    optimizer = tf_keras.optimizers.legacy.Adam()
    # The first step makes the slots, so the checkpoint has them.
    optimizer.apply_gradients(
        (tf.ones_like(x), x) for x in model.trainable_variables
    )
    tf.train.Checkpoint(model=model, optimizer=optimizer).save(prefix)
    return {"logits": model(INPUTS)}


def made_classifier_with_pooler(prefix):
    model = models.BertClassifier(
        encoder(), num_classes=3, use_encoder_pooler=False
    )
    checkpoint_of(randomized(model, 9)).write(prefix)
    return {"logits": model(INPUTS)}


def made_span_labeler(prefix):
    model = randomized(models.BertSpanLabeler(encoder()), 10)
    model.save_weights(prefix)
    return {"logits": _span_logits(model)}


def made_token_classifier(prefix):
    model = randomized(models.BertTokenClassifier(encoder(), num_classes=4), 11)
    checkpoint_of(model).write(prefix)
    return {"logits": model(INPUTS)["logits"]}


def made_two_encoders(prefix):
    tf.train.Checkpoint(generator=encoder(), discriminator=encoder()).write(
        prefix
    )
    return {}


def _span_logits(model):
    return tf.stack(model(INPUTS), axis=-1)


# === Our checkpoints ===


def read_encoder(prefix):
    model = encoder()
    checkpoint = tf.train.Checkpoint(encoder=model)
    checkpoint.read(prefix).assert_consumed().assert_existing_objects_matched()
    outputs = run_encoder(model)
    other = encoder()
    tf.train.Checkpoint(model=other).read(prefix).assert_consumed()
    _check_equal(model.variables, other.variables)
    return outputs


def read_pretrainer(prefix):
    model = randomized(pretrainer(), 0)
    checkpoint_of(model).read(prefix).assert_consumed()
    outputs = run_pretrainer(model)
    for names in (("model",), tuple(model.checkpoint_items)):
        other = randomized(pretrainer(), 0)
        items = {"model": other, **other.checkpoint_items}
        checkpoint = tf.train.Checkpoint(
            **{name: items[name] for name in names}
        )
        status = checkpoint.read(prefix).expect_partial()
        status.assert_existing_objects_matched()
    inner = encoder()
    status = tf.train.Checkpoint(encoder=inner).read(prefix).expect_partial()
    status.assert_existing_objects_matched()
    _check_equal(inner.variables, model.encoder_network.variables)
    functional = encoder(networks.BertEncoder)
    status = tf.train.Checkpoint(encoder=functional).read(prefix)
    status.expect_partial().assert_existing_objects_matched()
    _check_equal(functional.variables, inner.variables)
    return outputs | run_encoder(inner)


def read_erf(prefix):
    model = pretrainer(activation=tf_keras.activations.get("gelu"))
    checkpoint_of(model).read(prefix).assert_consumed()
    return run_pretrainer(model)


def read_classification(prefix):
    model = models.BertClassifier(encoder(), num_classes=3)
    checkpoint_of(model).read(prefix).assert_consumed()
    return {"logits": model(INPUTS)}


def read_question_answering(prefix):
    model = models.BertSpanLabeler(encoder())
    checkpoint_of(model).read(prefix).assert_consumed()
    return {"logits": _span_logits(model)}


def read_tagging(prefix):
    model = models.BertTokenClassifier(encoder(), num_classes=3)
    checkpoint_of(model).read(prefix).assert_consumed()
    return {"logits": model(INPUTS)["logits"]}


def _check_equal(variables, others):
    for one, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(one, other)


def main():
    for name, function in list(globals().items()):
        kind, _, case = name.partition("_")
        if kind not in ("made", "read"):
            continue
        folder = os.path.join(DIRECTORY, name)
        os.makedirs(folder, exist_ok=True)
        outputs = function(os.path.join(folder, PREFIX))
        np.savez(os.path.join(folder, "outputs.npz"), **outputs)


if __name__ == "__main__":
    main()
