pip install keras-hub tensorflow pandas safetensors fastapi uvicorn
