import json

import keras_hub
import numpy as np
from ai_edge_litert.interpreter import Interpreter

with open("model/names.json") as file:
    names = json.load(file)
preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
    "model", sequence_length=64
)
inputs = preprocessor(["Where is my new card?"])
run = Interpreter("model.tflite").get_signature_runner()
inputs = {name: np.array(x, "int32") for name, x in inputs.items()}
(logits,) = run(**inputs).values()
print(names[np.argmax(logits)])
