pip install keras-hub==0.32.0 tensorflow pandas safetensors fastapi uvicorn
