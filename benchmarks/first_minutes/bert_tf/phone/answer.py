from mediapipe.tasks.python import text

with text.TextClassifier.create_from_model_path("model.tflite") as classifier:
    answer = classifier.classify("Where is my new card?")
print(answer.classifications[0].categories[0].category_name)
