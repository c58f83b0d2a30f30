import keras
import keras_hub
import tensorflow as tf

model = keras_hub.models.BertTextClassifier.from_preset("model")
signature = {
    name: keras.InputSpec(shape=(1, 64), dtype="int32", name=name)
    for name in ("token_ids", "segment_ids", "padding_mask")
}
model.export(
    "model.tflite",
    format="litert",
    input_signature=[signature],
    optimizations=[tf.lite.Optimize.DEFAULT],
)
