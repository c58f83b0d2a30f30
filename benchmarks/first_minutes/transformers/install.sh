pip install torch==2.13.0 "transformers[torch]==5.23.0" datasets fastapi uvicorn
