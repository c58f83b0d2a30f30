pip install litert-torch
# -- train
python train.py
# -- answer
python export.py
python answer.py
# -- ships model.tflite
