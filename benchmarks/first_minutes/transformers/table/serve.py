from fastapi import FastAPI
from transformers import pipeline

app = FastAPI()
classify = pipeline("text-classification", "model")


@app.get("/predict")
def predict(text: str):
    return classify(text)
