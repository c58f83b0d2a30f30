# -- train
python train.py
# -- answer
uvicorn serve:app &
curl -G localhost:8000/predict --data-urlencode "text=Where is my new card?"
# -- ships model
