pip install ai-edge-litert
# -- train
python train.py
# -- answer
python export.py
python answer.py
# -- ships model.tflite
