r"""Attacks run/serve.py while honest clients use it, on this machine only.

  python benchmarks/abuse.py --engine=savedmodel --seconds=20
  python benchmarks/abuse.py --engine=litert --minutes=10

Three models of 2 layers and width 128 with random weights are served:
embeddings, answers to questions, and multiple choice. Eight honest clients,
four of REST and four of gRPC, send one short text after the other from a
process of their own. Each attack runs for some seconds; its line has the
statuses that it got, the honest clients' number of answers, errors, median and
99th percentile, and the server's memory before, at most, and two seconds after.
With --minutes all attacks run at once in random order, while new and broken
versions appear, the configuration is reloaded, and old versions go away. The
last line says whether the server lived, no honest client saw an error, the 99th
percentile stayed below a second and the memory below that of the idle server
and 1 GB; if not, the script ends with 1.

The kernel enforces no memory limit here, as containers may not make groups of
their own: the memory is read 20 times a second, and the server is killed when
it has twice the allowance.
"""

import base64
import collections
import contextlib
import gzip
import http.client
import json
import multiprocessing
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import numpy as np
import psutil
from absl import app
from absl import flags
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc
from tensorflow_serving.apis import predict_pb2

_ENGINE = flags.DEFINE_enum(
    "engine", "savedmodel", ["savedmodel", "litert"], "That of the server."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file",
    "tests/golden/vocab/bert-base-uncased-vocab.txt",
    "Vocabulary of the models.",
)
_SECONDS = flags.DEFINE_float("seconds", 20, "Seconds of each attack.")
_MINUTES = flags.DEFINE_float("minutes", 0, "Minutes of all attacks mixed.")
_ATTACKS = flags.DEFINE_list("attacks", None, "Names; all by default.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "JSON of the results.")
_SEED = flags.DEFINE_integer("seed", 1, "Of the order and the random bytes.")

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_MODEL = "embeddings"
_HEADS = (_MODEL, "question_answering", "multiple_choice")
_PATH = f"/v1/models/{_MODEL}:predict"
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_HONEST = {"instances": [{"text": "What is the balance of my account?"}]}
_ALLOWANCE = 1 << 30
_MOST_SECONDS = 1.0
_TIMEOUT_SECONDS = 60
# Attackers at once.
_NUM_ATTACKERS = 4
_MARGIN_SECONDS = 2
# Of the memory and the 99th percentile in the soak's plot.
_PLOT_SECONDS = 10


def _export(folder):
    """Writes the models and their exports; returns the configuration's path."""
    from bert_tf.checkpoints import model_directory
    from bert_tf.config import BertConfig
    from bert_tf.modeling import task_models
    from bert_tf.modeling.bert import named_variables
    from bert_tf.tasks.multiple_choice.examples import Columns
    from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
    from bert_tf.tasks.squad.task import SquadTask
    from bert_tf.text.tokenizer import BertTokenizer
    from bert_tf.text.vocabulary import Vocabulary

    config_path = _ROOT / "bert_tf/recipes/configs/tiny/bert_config.json"
    config = BertConfig.from_json(
        config_path.read_text(encoding="utf-8"), str(config_path)
    )
    vocabulary = Vocabulary.from_file(str(_ROOT / _VOCAB_FILE.value))
    kinds = {
        "question_answering": (
            task_models.BertForQuestionAnswering,
            SquadTask(max_seq_length=384),
        ),
        "multiple_choice": (
            task_models.BertForMultipleChoice,
            MultipleChoiceTask(
                name="custom", columns=Columns(("choices",), "context")
            ),
        ),
    }
    for kind, (model_class, task) in kinds.items():
        weights = named_variables(model_class(config))
        model_directory.write(
            f"{folder}/models/{kind}",
            config,
            {name: x.numpy() for name, x in weights.items()},
            vocabulary,
            BertTokenizer(vocabulary).settings(),
            {"kind": task.kind} | task.to_json(),
            "# Random weights\n",
        )
    models = ""
    for head in _HEADS:
        kind = head if head in kinds else "question_answering"
        subprocess.run(
            [
                *(sys.executable, str(_ROOT / "export" / "savedmodel.py")),
                f"--model_dir={folder}/models/{kind}",
                f"--output_dir={folder}/{head}",
                f"--head={head}",
                f"--litert={_ENGINE.value == 'litert'}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        models += f"config {{ name: '{head}' base_path: '{folder}/{head}' }}\n"
    path = pathlib.Path(folder, "models.config")
    path.write_text(f"model_config_list {{ {models} }}\n", encoding="utf-8")
    return path


class _Server:
    """run/serve.py in a process of its own, and its memory."""

    def __init__(self, config_path):
        self.config_path = config_path
        self.rest_port, self.port = _free_port(), _free_port()
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(_ROOT / "run" / "serve.py"),
                f"--model_config_file={config_path}",
                f"--engine={_ENGINE.value}",
                f"--port={self.port}",
                f"--rest_api_port={self.rest_port}",
                "--allow_reload",
            ],
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 300
        while not self._is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit("The server did not start.")
            time.sleep(0.2)
        for _ in range(20):
            self.ask(_HONEST)
        self.idle = self.most = self.memory()
        self.history = []
        threading.Thread(target=self._watch, daemon=True).start()

    def ask(self, document):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.rest_port, timeout=_TIMEOUT_SECONDS
        )
        with contextlib.closing(connection):
            connection.request("POST", _PATH, json.dumps(document))
            return connection.getresponse().status

    def memory(self):
        return psutil.Process(self.process.pid).memory_info().rss

    def _is_ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask(_HONEST) == 200
        return False

    def _watch(self):
        while self.process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = self.memory()
                self.most = max(self.most, memory)
                self.history.append((time.monotonic(), memory))
            if self.most > self.idle + 2 * _ALLOWANCE:
                print("The server has twice the allowance.", flush=True)
                self.process.kill()
            time.sleep(0.05)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# --- Honest clients, in a process of their own. ---


def _honest(rest_port, port, stop, results):
    """Asks until `stop`; puts (end, seconds, error) of all requests."""
    records = []

    def ask_rest():
        connection = http.client.HTTPConnection(
            "127.0.0.1", rest_port, timeout=_TIMEOUT_SECONDS
        )
        body = json.dumps(_HONEST)
        while not stop.is_set():
            begin = time.monotonic()
            error = None
            try:
                connection.request("POST", _PATH, body)
                response = connection.getresponse()
                content = response.read()
                if response.status != 200:
                    error = f"{response.status}: {content[:100]!r}"
            except (OSError, http.client.HTTPException) as raised:
                error = repr(raised)
                connection.close()
            end = time.monotonic()
            records.append((end, end - begin, error))

    def ask_grpc():
        request = _request(_text_proto([_HONEST["instances"][0]["text"]]))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            predict = channel.unary_unary(_PREDICT)
            while not stop.is_set():
                begin = time.monotonic()
                error = None
                try:
                    predict(request, timeout=_TIMEOUT_SECONDS)
                except grpc.RpcError as raised:
                    error = f"{raised.code()}: {raised.details()[:100]}"
                end = time.monotonic()
                records.append((end, end - begin, error))

    threads = [threading.Thread(target=x) for x in [ask_rest, ask_grpc] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(records)


def _request(proto, signature="", **options):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = _MODEL
    request.model_spec.signature_name = signature
    request.inputs["text"].CopyFrom(proto)
    return request.SerializeToString(**options)


def _text_proto(texts, num_rows=None):
    proto = tensor_pb2.TensorProto(
        dtype=7, string_val=[text.encode() for text in texts]
    )
    proto.tensor_shape.dim.add(size=num_rows or len(texts))
    return proto


# --- Attacks: each is called again and again, and returns what it got. ---


def _rest(server, body, headers=(), path=_PATH, timeout=_TIMEOUT_SECONDS):
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.rest_port, timeout=timeout
    )
    with contextlib.closing(connection):
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        response.read()
        return response.status


def _grpc(server, content, timeout=_TIMEOUT_SECONDS, **options):
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}",
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    ) as channel:
        try:
            channel.unary_unary(_PREDICT)(content, timeout=timeout, **options)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def _raw(server, *parts, pause=0.0, port=None):
    """Sends bytes with pauses; returns the first line of the answer."""
    address = "127.0.0.1", port or server.rest_port
    with socket.create_connection(address, _TIMEOUT_SECONDS) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        connection.settimeout(1)
        try:
            return connection.recv(100)[:12].decode("latin-1") or "closed"
        except TimeoutError:
            return "open"


def _texts(count, words):
    return {"instances": [{"text": "account " * words}] * count}


_HEADER = f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
_BOMB = gzip.compress(b" " * (75 << 20))
_GZIP = {"Content-Encoding": "gzip"}
_MANY_LISTS = b'{"instances": [' + b"[]," * (5 << 20) + b"[]]}"
_LONG_ROWS = json.dumps(_texts(9000, 200))
_MANY_TEXTS = json.dumps(_texts(64, 200))


def _attention(count):
    return json.dumps(_texts(count, 200) | {"signature_name": "attention"})


def _slow_header(server):
    parts = [_HEADER] + [b"X-A: b\r\n"] * 20
    return _raw(server, *parts, pause=0.5)


def _slow_body(server):
    header = _HEADER + b"Content-Length: 1000\r\n\r\n"
    return _raw(server, header, *[b"{"] * 20, pause=0.5)


def _idle_connections(server):
    address = "127.0.0.1", server.rest_port
    with contextlib.ExitStack() as stack:
        count = 0
        with contextlib.suppress(OSError):
            for _ in range(1500):
                stack.enter_context(socket.create_connection(address, 5))
                count += 1
        time.sleep(1)
    return f"{count} connections"


def _disconnect(server):
    address = "127.0.0.1", server.rest_port
    body = _MANY_TEXTS.encode()
    with socket.create_connection(address, _TIMEOUT_SECONDS) as connection:
        connection.sendall(
            _HEADER + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        time.sleep(random.random() / 10)
    return "gone"


def _bytes(server):
    _raw(server, random.randbytes(5000), port=server.port)
    return _raw(server, random.randbytes(5000))


def _numbers(server):
    proto = tensor_pb2.TensorProto(dtype=1, float_val=[0])
    proto.tensor_shape.dim.add(size=5_500_000_000)
    return _grpc(server, _request(proto))


def _half_messages(server):
    """Holds calls whose messages do not come, on a connection of its own."""
    ended = threading.Event()

    def messages():
        ended.wait(_TIMEOUT_SECONDS)
        yield from ()

    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        method = channel.stream_unary(_PREDICT)
        calls = [method.future(messages()) for _ in range(50)]
        time.sleep(2)
        count = sum(call.done() for call in calls)
        ended.set()
        for call in calls:
            call.cancel()
    return f"{count // 25 * 25} or more of 50 ended"


def _metadata(server):
    """Sends 1 MB of metadata, and does not confirm HTTP/2's settings."""

    def frame(kind, flags, content, stream=1):
        size = len(content) << 8
        return struct.pack(">IBI", size | kind, flags, stream) + content

    def entry(name, value):
        return b"".join(bytes([len(x)]) + x.encode() for x in ("", name, value))

    header = {
        ":method": "POST",
        ":scheme": "http",
        ":path": _PREDICT,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    answer = _raw(
        server,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", 0),
        frame(1, 0, b"".join(entry(*x) for x in header.items())),
        frame(9, 0, entry("x", "a" * 100) * 150) * 66 + frame(9, 4, b""),
        port=server.port,
    )
    return answer if answer in ("open", "closed") else "answered"


_ALL = {
    "2 million empty fields": lambda s: _grpc(s, b"\x12\x00" * 2_000_000),
    "8 million empty fields in 16 kB": lambda s: _grpc(
        s, b"\x12\x00" * 8_000_000, compression=grpc.Compression.Gzip
    ),
    "half messages": _half_messages,
    "metadata of 1 MB, unconfirmed": _metadata,
    "73 kB of gzip": lambda s: _rest(s, _BOMB, _GZIP),
    "repeated number of 22 GB": _numbers,
    "repeated string of 22 GB": lambda s: _grpc(
        s, _request(_text_proto(["a" * 1000], 22_000_000))
    ),
    "100000 rows": lambda s: _rest(s, json.dumps(_texts(100_000, 1))),
    "9000 long rows": lambda s: _rest(s, _LONG_ROWS),
    "JSON 100000 deep": lambda s: _rest(s, b'{"a":' + b"[" * 100_000),
    "5 million lists": lambda s: _rest(s, _MANY_LISTS),
    "15 MB of text": lambda s: _rest(
        s, json.dumps(_texts(1, 15 << 17)), timeout=_TIMEOUT_SECONDS
    ),
    "attention of 9000 rows": lambda s: _rest(s, _attention(9000)),
    "attention of 64 rows": lambda s: _rest(s, _attention(64)),
    "header of 10 MB": lambda s: _raw(s, _HEADER, b"X: " + b"a" * (10 << 20)),
    "URL of 1 MB": lambda s: _raw(s, b"GET /" + b"a" * (1 << 20)),
    "metadata of 1 MB": lambda s: _grpc(
        s, b"", metadata=(("a", "a" * (1 << 20)),)
    ),
    "slow headers": _slow_header,
    "slow bodies": _slow_body,
    "idle connections": _idle_connections,
    "clients that go away": _disconnect,
    "deadlines that pass": lambda s: _grpc(
        s, _request(_text_proto(["account " * 200] * 512)), timeout=0.05
    ),
    "foreign page": lambda s: _rest(
        s, json.dumps(_HONEST), {"Origin": "http://evil.example"}
    ),
    "foreign host": lambda s: _rest(
        s, json.dumps(_HONEST), {"Host": "evil.example"}
    ),
    "bad protos": lambda s: _grpc(s, random.randbytes(1000)),
    "bad strings": lambda s: _rest(
        s,
        json.dumps(
            {"instances": [{"b64": base64.b64encode(b"\xff\x00").decode()}]}
        ),
    ),
    "random bytes": _bytes,
}


def _attack(server, names, seconds):
    """Returns how often each answer came to attacks in random order."""
    answers = collections.Counter()
    end = time.monotonic() + seconds

    def run():
        while time.monotonic() < end and server.process.poll() is None:
            try:
                answer = _ALL[random.choice(names)](server)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            answers[str(answer)] += 1

    threads = [threading.Thread(target=run) for _ in range(_NUM_ATTACKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


class _Versions:
    """New, broken and removed versions, and reloads, until it ends."""

    def __init__(self, server):
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.counts = collections.Counter()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        folder = self._server.config_path.parent / _MODEL
        newest = 1
        while not self._stop.wait(10):
            kind = random.choice(("new", "broken", "reload"))
            self.counts[kind] += 1
            if kind == "reload":
                self._reload()
                continue
            temporary = folder / "copy"
            shutil.copytree(folder / str(newest), temporary)
            number = max(int(x.name) for x in folder.glob("[0-9]*")) + 1
            if kind == "broken":
                graph = temporary / "saved_model.pb"
                graph.write_bytes(graph.read_bytes()[:1000])
            temporary.rename(folder / str(number))
            if kind == "new":
                old, newest = newest, number
                self._stop.wait(20)  # Until it has taken over.
                shutil.rmtree(folder / str(old))

    def _reload(self):
        request = model_management_pb2.ReloadConfigRequest()
        for name in (*_HEADS, "broken"):
            entry = request.config.model_config_list.config.add()
            entry.name = name
            entry.base_path = str(self._server.config_path.parent / name)
        channel = grpc.insecure_channel(f"127.0.0.1:{self._server.port}")
        with channel, contextlib.suppress(grpc.RpcError):
            model_service_pb2_grpc.ModelServiceStub(
                channel
            ).HandleReloadConfigRequest(request, timeout=_TIMEOUT_SECONDS)


def _measure(server, names, seconds):
    """Returns the result of some attacks, without the honest clients."""
    name = names[0] if len(names) == 1 else "all mixed"
    before = server.most = server.memory()
    begin = time.monotonic()
    answers = _attack(server, names, seconds)
    end = time.monotonic()
    time.sleep(_MARGIN_SECONDS)
    print(f"{name}: {dict(answers.most_common(6))}", flush=True)
    if server.process.poll() is not None:
        sys.exit(f"The server ended, {server.most / 2**20:.0f} MB.")
    return {
        "attack": name,
        "begin": begin,
        "end": end,
        "answers": dict(answers.most_common(6)),
        "bytes_before": before,
        "most_bytes": server.most,
        "bytes_after": server.memory(),
    }


def _add_honest(result, records):
    """Adds what honest clients saw during an attack."""
    during = [
        (seconds, error)
        for end, seconds, error in records
        if end >= result["begin"] and end - seconds <= result["end"]
    ]
    times = [seconds for seconds, _ in during] or [float("inf")]
    errors = [error for _, error in during if error]
    result["honest"] = len(during)
    result["honest_errors"] = len(errors)
    result["first_errors"] = errors[:3]
    result["p50"], result["p99"] = map(float, np.percentile(times, (50, 99)))


def main(argv):
    del argv
    random.seed(_SEED.value)
    names = _ATTACKS.value or list(_ALL)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        server = _Server(_export(folder))
        print(f"idle: {server.idle / 2**20:.0f} MB")
        stop, records = spawn.Event(), spawn.Queue()
        clients = spawn.Process(
            target=_honest, args=(server.rest_port, server.port, stop, records)
        )
        clients.start()
        time.sleep(5)
        results = []
        with contextlib.ExitStack() as stack:
            if _MINUTES.value:
                versions = stack.enter_context(_Versions(server))
                results.append(_measure(server, names, 60 * _MINUTES.value))
                print(f"versions: {dict(versions.counts)}")
            else:
                for name in names:
                    results.append(_measure(server, [name], _SECONDS.value))
        stop.set()
        seen = records.get()
        clients.join()
        answers_after = server.process.poll() is None and server.ask(_HONEST)
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(60)
        server.process.kill()
    _report(server, results, seen, answers_after == 200)


def _report(server, results, records, answers_after):
    print(
        "| attack | answers | honest | errors | p50 ms | p99 ms | MB before | "
        "peak | after |\n|---|---|---|---|---|---|---|---|---|"
    )
    held = answers_after
    for result in results:
        _add_honest(result, records)
        memory = " | ".join(
            f"{result[x] / 2**20:.0f}"
            for x in ("bytes_before", "most_bytes", "bytes_after")
        )
        answers = ", ".join(f"{k}: {v}" for k, v in result["answers"].items())
        print(
            f"| {result['attack']} | {answers} | {result['honest']} "
            f"| {result['honest_errors']} | {1000 * result['p50']:.0f} "
            f"| {1000 * result['p99']:.0f} | {memory} |"
        )
        for error in result["first_errors"]:
            print(f"  {error}")
        held = (
            held
            and not result["honest_errors"]
            and result["p99"] < _MOST_SECONDS
            and result["most_bytes"] - server.idle < _ALLOWANCE
        )
    if _OUTPUT_FILE.value:
        with open(_OUTPUT_FILE.value, "w", encoding="utf-8") as file:
            begin = results[0]["begin"]
            report = {
                "engine": _ENGINE.value,
                "idle_bytes": server.idle,
                "attacks": results,
                "curve": _curve(server.history, records, begin),
            }
            json.dump(report, file, indent=1)
            file.write("\n")
    print("held" if held else "did not hold")
    sys.exit(0 if held else 1)


def _curve(history, records, begin):
    """Returns [second, most bytes, 99th percentile in s] of each period."""
    periods = collections.defaultdict(lambda: ([], []))
    for moment, memory in history:
        periods[(moment - begin) // _PLOT_SECONDS][0].append(memory)
    for end, seconds, _ in records:
        periods[(end - begin) // _PLOT_SECONDS][1].append(seconds)
    return [
        [period * _PLOT_SECONDS, max(memory), float(np.percentile(times, 99))]
        for period, (memory, times) in sorted(periods.items())
        if memory and times and period >= 0
    ]


if __name__ == "__main__":
    app.run(main)
