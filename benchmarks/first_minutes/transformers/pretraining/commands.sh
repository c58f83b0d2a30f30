# -- train
python train.py
# -- answer
python answer.py
# -- ships model
