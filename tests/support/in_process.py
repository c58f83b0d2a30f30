"""Calls SavedModels in this process, where a test need not wait for another."""

import contextlib
import json
import os
import tempfile
from unittest import mock

from bert_tf.export.verify import clients
from bert_tf.export.verify import replay
from bert_tf.export.verify import run as verification


class InProcess(clients.FreshProcess):
    """What `FreshProcess` is, but for the process."""

    name = "this process"

    def ask(self, calls):
        with tempfile.TemporaryDirectory() as folder:
            request = os.path.join(folder, "request.json")
            answer = os.path.join(folder, "answer.json")
            with open(request, "w", encoding="utf-8") as file:
                json.dump(self._request(calls, answer), file)
            with mock.patch.object(replay, "_FORBIDDEN", ()):
                replay.main(request)
            with open(answer, encoding="utf-8") as file:
                answers = json.load(file)["calls"]
        return [clients._decode_answer(answer) for answer in answers]


@contextlib.contextmanager
def verifying():
    """Lets exports be verified without a process of their own."""
    with mock.patch.object(verification, "FreshProcess", InProcess):
        yield
