"""Search by meaning: the page and the answers for --search_file.

The served model embeds all texts before the server listens, and embeds each
query when it arrives. The answer has the texts nearest to the query by cosine.

Shapes:
  N: number of texts.
  H: size of an embedding.
"""

import asyncio
import hashlib
import os
from collections.abc import Sequence

import keras
import numpy as np
from starlette import requests
from starlette import responses
from starlette import routing

from bert_tf.errors import UserError
from bert_tf.flags.serve import ServeConfig
from bert_tf.io import files
from bert_tf.io import paths
from bert_tf.io import progress
from bert_tf.serving import bodies
from bert_tf.serving import errors
from bert_tf.serving import json_values
from bert_tf.serving import preflight
from bert_tf.serving.calls import Call
from bert_tf.serving.servable import DEFAULT_SIGNATURE
from bert_tf.serving.service import Service

_PAGE = os.path.join(os.path.dirname(__file__), "page", "search.html")
_TEXTS_PER_CALL = 64
_COUNT, _MAX_COUNT = 10, 1000
# If a cached and a new embedding have a smaller cosine, the model has changed.
_SAME = 0.9999


class Search:
    """Answers queries with the nearest texts, embedded by the model `name`.

    Raises:
      UserError: If --search_file has no text, or is no table of texts.
    """

    def __init__(self, config: ServeConfig, service: Service, name: str):
        found = files.expand_globs(config.search_file, "--search_file")
        self._texts = preflight.read_texts(config.search_file, found)
        self._service = service
        self._name = name
        self._seconds = config.rest_api_timeout_in_ms / 1000
        self._vectors: np.ndarray | None = None
        self.routes = [
            routing.Route("/search", lambda _: responses.FileResponse(_PAGE)),
            routing.Route("/search", self._answer, methods=["POST"]),
        ]

    async def fill(self) -> None:
        """Embeds the texts, or reads their embeddings from the cache.

        Raises:
          UserError: If the model returns no embeddings, or refuses a text.
        """
        with self._service.manager.use(self._name) as servable:
            signature = servable.signatures.get(DEFAULT_SIGNATURE)
        outputs = signature.outputs if signature else ()
        if "embedding" not in outputs or set(signature.inputs) != {"text"}:
            raise UserError(
                "--search_file needs a model for embeddings, as "
                "export/savedmodel.py --head=embeddings writes it. Received: "
                f"{self._name}, which answers otherwise."
            )
        texts = [x["text"] for x in self._texts]
        digest = hashlib.sha256("\0".join([self._name, *texts]).encode())
        name = f"{digest.hexdigest()}.npy"
        cache = os.path.join(paths.cache_dir(), "searched", name)
        stored = np.load(cache) if os.path.exists(cache) else np.empty((0, 0))
        # If the first call returns the cached embeddings, the cache is valid.
        # Embed the longest texts in this call: if the maximum length of the
        # model has changed, only the embeddings of long texts differ.
        order = np.argsort([-len(x) for x in texts], kind="stable")
        rows = {}
        with progress.bar(len(texts), "embedding", "text") as bar:
            for first in range(0, len(texts), _TEXTS_PER_CALL):
                part = order[first : first + _TEXTS_PER_CALL]
                try:
                    values = await self._embed([texts[x] for x in part])
                except errors.RequestError as error:
                    raise UserError(f"--search_file: {error}") from error
                if (
                    first == 0
                    and stored.shape == (len(texts), values.shape[1])
                    and (stored[part] * values).sum(-1).min() > _SAME
                ):
                    self._vectors = stored
                    return
                rows |= dict(zip(part, values, strict=True))
                bar.update(len(part))
        self._vectors = np.stack([rows[x] for x in range(len(texts))])
        with files.atomic_file(cache) as temporary:
            with open(temporary, "wb") as file:
                np.save(file, self._vectors)

    async def _embed(self, texts: Sequence[str]) -> np.ndarray:
        """Returns vectors of length 1, <float32>[N, H]."""
        async with self._service.counted("Search") as request:
            with self._service.manager.use(self._name) as servable:
                request.servable = servable
                encoded = [x.encode(errors="replace") for x in texts]
                inputs = {"text": np.array(encoded, object)}
                signature = servable.signatures[DEFAULT_SIGNATURE]
                call = Call(signature, inputs, ("embedding",), dict)
                outputs = await self._service.answer(request, call)
        return keras.utils.normalize(outputs["embedding"])

    async def _answer(self, request: requests.Request) -> responses.Response:
        """Answers {"query": text, "count": number} with `results`."""
        try:
            async with (
                self._service.counted("Search") as counted,
                asyncio.timeout(self._seconds),
            ):
                body = await self._service.bodies.read(request, counted.reserve)
                bodies.check_json(body, self._service.limits)
                document = json_values.parse(body)
                query = document.get("query")
                count = document.get("count", _COUNT)
                if not isinstance(query, str) or not query.strip():
                    raise errors.invalid("`query` must be a text, not empty.")
                if type(count) is not int or not 1 <= count <= _MAX_COUNT:
                    raise errors.invalid(f"`count` must be 1 to {_MAX_COUNT}.")
                (vector,) = await self._embed([query])
                scores = await asyncio.to_thread(np.dot, self._vectors, vector)
        except errors.RequestError as error:
            status = error.http_status
            return responses.JSONResponse({"error": error.message}, status)
        best = np.argsort(-scores, kind="stable")[:count].tolist()
        results = [{**self._texts[x], "score": float(scores[x])} for x in best]
        return responses.JSONResponse({"results": results})
