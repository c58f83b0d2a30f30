r"""Attacks run/serve.py while honest clients use it, on this machine only.

  python benchmarks/abuse.py --engine=savedmodel --seconds=20
  python benchmarks/abuse.py --engine=litert --minutes=10

The server has three models of 2 layers and width 128 with random weights:
embeddings, answers to questions, and multiple choice. Eight honest clients,
four of REST and four of gRPC, send one short text after the other from their
own process. Each attack runs for some seconds. Its line has the statuses that
it got. For the honest clients, it has the number of answers and errors, and the
median and 99th percentile of the times. The last columns are the server's
memory before the attack, at its peak, and two seconds after. With --minutes all
attacks run at once in random order, while new and broken versions appear, the
configuration is reloaded, and old versions are removed.
The last line has the result. The script exits with 1 if the server ends, an
honest client gets an error, the 99th percentile reaches a second, or the memory
exceeds the idle server's by 1 GB.

The kernel enforces no memory limit here, because containers may not make
control groups. The script reads the memory 20 times a second, and kills the
server if it grows by more than 2 GB.
"""

import collections
import contextlib
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import abuse_attacks as attacks
import grpc
import numpy as np
import psutil
import runs
import turns
from absl import flags
from tensorflow_serving.apis import model_management_pb2
from tensorflow_serving.apis import model_service_pb2_grpc

_ENGINE = flags.DEFINE_enum(
    "engine", "savedmodel", ["savedmodel", "litert"], "The server's engine."
)
_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", runs.VOCAB_FILE, "Vocabulary of the models."
)
_SECONDS = flags.DEFINE_float("seconds", 20, "Seconds of each attack.")
_MINUTES = flags.DEFINE_float("minutes", 0, "Minutes of all attacks mixed.")
_ATTACKS = flags.DEFINE_list("attacks", None, "Names; all by default.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "JSON of the results.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed of the order and random bytes.")

_HEADS = (attacks.MODEL, "question_answering", "multiple_choice")
_ALLOWANCE = 1 << 30
_MOST_SECONDS = 1.0
# Number of threads that attack at once.
_NUM_ATTACKERS = 4
_MARGIN_SECONDS = 2
# Length of a period in the soak's plot of memory and 99th percentile.
_PLOT_SECONDS = 10


def _export(folder):
    """Writes the models and their exports; returns the configuration's path."""
    from bert_tf.config import BertConfig
    from bert_tf.modeling import task_models
    from bert_tf.tasks.multiple_choice.examples import Columns
    from bert_tf.tasks.multiple_choice.task import MultipleChoiceTask
    from bert_tf.tasks.squad.task import SquadTask

    path = runs.ROOT / "bert_tf/recipes/configs/tiny/bert_config.json"
    config = BertConfig.from_dict(runs.read_json(path))
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
        turns.write_model(
            f"{folder}/models/{kind}",
            model_class(config),
            task,
            _VOCAB_FILE.value,
        )
    models = ""
    for head in _HEADS:
        kind = head if head in kinds else "question_answering"
        subprocess.run(
            runs.command(
                "export/savedmodel.py",
                model_dir=f"{folder}/models/{kind}",
                output_dir=f"{folder}/{head}",
                head=head,
                litert=_ENGINE.value == "litert",
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        models += f"config {{ name: '{head}' base_path: '{folder}/{head}' }}\n"
    path = pathlib.Path(folder, "models.config")
    path.write_text(f"model_config_list {{ {models} }}\n", encoding="utf-8")
    return path


class _Server:
    """Runs run/serve.py in another process, and measures its memory."""

    def __init__(self, config_path):
        self.config_path = config_path
        self.rest_port, self.port = runs.free_ports(2)
        self.process = subprocess.Popen(
            runs.command(
                "run/serve.py",
                model_config_file=config_path,
                engine=_ENGINE.value,
                port=self.port,
                rest_api_port=self.rest_port,
                allow_reload=True,
            ),
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 300
        while not self._is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit("The server did not start.")
            time.sleep(0.2)
        for _ in range(20):
            self.ask(attacks.HONEST)
        self.idle = self.most = self.memory()
        self.history = []
        threading.Thread(target=self._watch, daemon=True).start()

    def ask(self, document):
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.rest_port, timeout=attacks.TIMEOUT_SECONDS
        )
        with contextlib.closing(connection):
            connection.request("POST", attacks.PATH, json.dumps(document))
            return connection.getresponse().status

    def memory(self):
        return psutil.Process(self.process.pid).memory_info().rss

    def _is_ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask(attacks.HONEST) == 200
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


# --- Honest clients, in a separate process. ---


def _honest(rest_port, port, started, stop, results):
    """Sends requests until `stop`; puts (end, seconds, error) of each one."""
    started.set()
    records = []

    def ask_rest():
        connection = http.client.HTTPConnection(
            "127.0.0.1", rest_port, timeout=attacks.TIMEOUT_SECONDS
        )
        body = json.dumps(attacks.HONEST)
        while not stop.is_set():
            begin = time.monotonic()
            error = None
            try:
                connection.request("POST", attacks.PATH, body)
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
        request = attacks.predict_request(
            attacks.text_proto([attacks.HONEST["instances"][0]["text"]])
        )
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            predict = channel.unary_unary(attacks.PREDICT)
            while not stop.is_set():
                begin = time.monotonic()
                error = None
                try:
                    predict(request, timeout=attacks.TIMEOUT_SECONDS)
                except grpc.RpcError as raised:
                    error = f"{raised.code()}: {raised.details()[:100]}"
                end = time.monotonic()
                records.append((end, end - begin, error))

    _run_at_once([ask_rest, ask_grpc] * 4)
    results.put(records)


def _run_at_once(functions):
    threads = [threading.Thread(target=x) for x in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attack(server, names, seconds):
    """Attacks in random order; returns the count of each answer."""
    answers = collections.Counter()
    end = time.monotonic() + seconds

    def run():
        while time.monotonic() < end and server.process.poll() is None:
            try:
                answer = attacks.ALL[random.choice(names)](server)
            except (OSError, http.client.HTTPException) as error:
                answer = type(error).__name__
            answers[str(answer)] += 1

    _run_at_once([run] * _NUM_ATTACKERS)
    return answers


class _Versions:
    """Adds good and broken versions, removes some and reloads, in a loop."""

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
        folder = self._server.config_path.parent / attacks.MODEL
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
                self._stop.wait(20)  # The new version must take over first.
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
            ).HandleReloadConfigRequest(
                request, timeout=attacks.TIMEOUT_SECONDS
            )


def _measure(server, names, seconds):
    """Returns the result of some attacks, without the honest clients'."""
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
    """Adds the honest clients' times and errors during an attack."""
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


def main():
    random.seed(_SEED.value)
    names = _ATTACKS.value or list(attacks.ALL)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        server = _Server(_export(folder))
        print(f"idle: {server.idle / 2**20:.0f} MB")
        started, stop, records = spawn.Event(), spawn.Event(), spawn.Queue()
        clients = spawn.Process(
            target=_honest,
            args=(server.rest_port, server.port, started, stop, records),
        )
        clients.start()
        started.wait()
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
        answers_after = server.process.poll() is None and server.ask(
            attacks.HONEST
        )
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
        begin = results[0]["begin"]
        report = {
            "engine": _ENGINE.value,
            "idle_bytes": server.idle,
            "attacks": results,
            "curve": _curve(server.history, records, begin),
        }
        runs.write_json(os.path.abspath(_OUTPUT_FILE.value), report)
    print("held" if held else "did not hold")
    sys.exit(0 if held else 1)


def _curve(history, records, begin):
    """Returns [second, maximum bytes, 99th percentile in s] of each period."""
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
    runs.main(main)
