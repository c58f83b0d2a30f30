import json

import keras
import keras_hub
from fastapi import FastAPI

app = FastAPI()
model = keras_hub.models.BertTextClassifier.from_preset("model")
with open("model/names.json") as file:
    names = json.load(file)


@app.get("/predict")
def predict(text: str):
    probabilities = keras.ops.softmax(model.predict([text])[0])
    best = int(keras.ops.argmax(probabilities))
    return {"label": names[best], "score": float(probabilities[best])}
