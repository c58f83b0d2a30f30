"""The attacks of benchmarks/abuse.py.

Each attack is a function that is called again and again. It takes the server,
with its `port` and `rest_port` on this machine, and returns the answer.
"""

import base64
import contextlib
import gzip
import http.client
import json
import random
import socket
import struct
import threading
import time

import grpc
from tensorflow.core.framework import resource_handle_pb2
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

MODEL = "embeddings"
PATH = f"/v1/models/{MODEL}:predict"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
HONEST = {"instances": [{"text": "What is the balance of my account?"}]}
TIMEOUT_SECONDS = 60


def predict_request(proto, signature="", **options):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    request.model_spec.signature_name = signature
    request.inputs["text"].CopyFrom(proto)
    return request.SerializeToString(**options)


def text_proto(texts, num_rows=None):
    proto = tensor_pb2.TensorProto(
        dtype=7, string_val=[text.encode() for text in texts]
    )
    proto.tensor_shape.dim.add(size=num_rows or len(texts))
    return proto


def _rest(server, body, headers=(), path=PATH, timeout=TIMEOUT_SECONDS):
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.rest_port, timeout=timeout
    )
    with contextlib.closing(connection):
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        response.read()
        return response.status


def _grpc(server, content, timeout=TIMEOUT_SECONDS, **options):
    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}",
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    ) as channel:
        try:
            channel.unary_unary(PREDICT)(content, timeout=timeout, **options)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def _raw(server, *parts, pause=0.0, port=None):
    """Sends bytes with pauses; returns the first line of the answer."""
    address = "127.0.0.1", port or server.rest_port
    with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
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


_HEADER = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
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
    with socket.create_connection(address, TIMEOUT_SECONDS) as connection:
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
    return _grpc(server, predict_request(proto))


def _many_numbers(server):
    """Repeats a number 16 million times for each of 60 inputs, in 1 kB."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL
    for name in range(60):
        proto = request.inputs[str(name)]
        proto.dtype = 1
        proto.float_val.append(0)
        proto.tensor_shape.dim.add(size=16_000_000)
    return _grpc(server, request.SerializeToString())


def _half_messages(server):
    """Begins calls on a separate connection, and sends none of their bytes."""
    ended = threading.Event()

    def messages():
        ended.wait(TIMEOUT_SECONDS)
        yield from ()

    with grpc.insecure_channel(
        f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        method = channel.stream_unary(PREDICT)
        calls = [method.future(messages()) for _ in range(50)]
        time.sleep(2)
        count = sum(call.done() for call in calls)
        ended.set()
        for call in calls:
            call.cancel()
    return f"{count // 25 * 25} or more of 50 ended"


_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind, flags, content, stream=0):
    """Returns an HTTP/2 frame; flag 1 ends the stream, flag 4 its header."""
    size = len(content) << 8
    return struct.pack(">IBI", size | kind, flags, stream) + content


def _entries(header):
    """Returns a header's entries without compression."""
    return b"".join(
        b"\0" + b"".join(bytes([len(x)]) + x.encode() for x in pair)
        for pair in header.items()
    )


_PREDICT_HEADER = _entries(
    {
        ":method": "POST",
        ":scheme": "http",
        ":path": PREDICT,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
)


def _metadata(server):
    """Sends 1 MB of metadata, and does not confirm HTTP/2's settings."""
    more = _entries({"x": "a" * 100}) * 150
    answer = _raw(
        server,
        _START + _frame(4, 0, b""),
        _frame(1, 0, _PREDICT_HEADER, 1),
        _frame(9, 0, more, 1) * 66 + _frame(9, 4, b"", 1),
        port=server.port,
    )
    return answer if answer in ("open", "closed") else "answered"


def _unread_answers(server):
    """Makes 100 calls, stays connected, and does not read the answers."""
    content = predict_request(text_proto(["account"] * 500))
    content = b"\0" + len(content).to_bytes(4, "big") + content
    calls = b"".join(
        _frame(1, 4, _PREDICT_HEADER, stream) + _frame(0, 1, content, stream)
        for stream in range(1, 201, 2)
    )
    start = _START + _frame(4, 0, b"") + _frame(4, 1, b"")
    _raw(server, start, calls, pause=5, port=server.port)
    return "not read"


def _no_window(server):
    """Makes 1,000 calls on 10 connections that accept no byte of an answer."""
    content = predict_request(text_proto(["a"]))
    content = b"\0" + len(content).to_bytes(4, "big") + content
    calls = b"".join(
        _frame(1, 4, _PREDICT_HEADER, stream) + _frame(0, 1, content, stream)
        for stream in range(1, 201, 2)
    )
    no_window = struct.pack(">HI", 4, 0)
    start = _START + _frame(4, 0, no_window) + _frame(4, 1, b"")
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            address = "127.0.0.1", server.port
            connection = socket.create_connection(address, TIMEOUT_SECONDS)
            stack.enter_context(connection).sendall(start + calls)
        time.sleep(5)
    return "not read"


def _hide_choices(server):
    """Sends a feature with a list of 1,000 choices and then an empty list."""
    values = b"".join(b"\x0a\x01a" for _ in range(1000))
    feature = _field(1, values) + _field(3, b"")
    entry = _field(1, b"choices") + _field(2, feature)
    text = _field(1, b"text") + _field(2, _field(1, b"\x0a\x01a"))
    example = _field(1, _field(1, entry) + _field(1, text))
    return _examples(server, example, _CHOICE)


def _field(number, content):
    """Returns a field of a message with some bytes."""
    size, rest = bytearray(), len(content)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + content


def _examples(server, example, path):
    row = {"examples": {"b64": base64.b64encode(example).decode()}}
    body = {"signature_name": "from_examples", "instances": [row]}
    content = gzip.compress(json.dumps(body).encode())
    return _rest(server, content, _GZIP, path)


def _repeated_choices(server):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "multiple_choice"
    for name, sizes in (("text", [1]), ("choices", [1, 2_790_000])):
        proto = request.inputs[name]
        proto.dtype = 7
        proto.string_val.append(b"")
        for size in sizes:
            proto.tensor_shape.dim.add(size=size)
    return _grpc(server, request.SerializeToString())


def _reset(server):
    """Begins and resets a thousand calls."""
    calls = b"".join(
        _frame(1, 4, _PREDICT_HEADER, stream)
        + _frame(3, 0, bytes([0, 0, 0, 8]), stream)
        for stream in range(1, 2001, 2)
    )
    start = _START + _frame(4, 0, b"") + _frame(4, 1, b"")
    _raw(server, start, calls, port=server.port)
    return "reset"


def _fields():
    """Returns messages within all limits, each with many fields of a kind."""
    repeated = (
        ("resource_handle_val", resource_handle_pb2.ResourceHandleProto()),
        ("variant_val", tensor_pb2.VariantTensorDataProto()),
        ("string_val", b""),
        ("half_val", 0),
    )
    messages = []
    for name, value in repeated:
        proto = tensor_pb2.TensorProto(**{name: [value] * _MOST_FIELDS})
        messages.append(predict_request(proto))
    proto = tensor_pb2.TensorProto()
    for _ in range(_MOST_FIELDS):
        proto.tensor_shape.dim.add()
    messages.append(predict_request(proto))
    request = predict_pb2.PredictRequest()
    for number in range(_MOST_FIELDS // 3):
        request.inputs[str(number)].SetInParent()
    messages.append(request.SerializeToString())
    return messages


def _send_fields(server):
    return _grpc(server, random.choice(_MANY_FIELDS))


_SPACES = gzip.compress(
    b'{"instances": [{"text": {"b64": "' + b"aa " * (20 << 20) + b'"}}]}'
)
_MANY_FEATURES = _field(1, b"\x0a\x07\x0a\x05abcde" * 1_000_000)
_MOST_FIELDS = 99_000
_MANY_FIELDS = _fields()
_QA = "/v1/models/question_answering:predict"
_CHOICE = "/v1/models/multiple_choice:predict"


def _row(context):
    row = {"question": "Who sat there?", "context": context}
    return json.dumps({"instances": [row]}).encode()


# The first row has nearly as many tokens as the server allows.
_LONG_ROW = _row("account " * 65_000)
_LONGER_ROW = gzip.compress(_row("account " * 2_000_000))
_DENSE_ROW = _row("." * 4000)


def _choices(count):
    row = {"text": "account " * 300, "choices": ["account"] * count}
    return json.dumps({"instances": [row]})


def _leave_long_row(server):
    head = _HEADER.replace(PATH.encode(), _QA.encode())
    length = f"Content-Length: {len(_LONG_ROW)}\r\n\r\n".encode()
    _raw(server, head, length, _LONG_ROW)  # Disconnects after a second.
    return "gone"


ALL = {
    "2 million empty fields": lambda s: _grpc(s, b"\x12\x00" * 2_000_000),
    "8 million empty fields in 16 kB": lambda s: _grpc(
        s, b"\x12\x00" * 8_000_000, compression=grpc.Compression.Gzip
    ),
    "almost 100000 fields of each kind": _send_fields,
    "half messages": _half_messages,
    "answers that are not read": _unread_answers,
    "calls whose clients take no byte": _no_window,
    "calls that are reset": _reset,
    "3 million choices in 70 bytes": _repeated_choices,
    "1000 choices before an empty list": _hide_choices,
    "a tf.Example of a million features": lambda s: _examples(
        s, _MANY_FEATURES, PATH
    ),
    "20 million spaces in base64": lambda s: _rest(s, _SPACES, _GZIP),
    "a row of 65000 tokens": lambda s: _rest(s, _LONG_ROW, path=_QA),
    "a row of 4000 dots": lambda s: _rest(s, _DENSE_ROW, path=_QA),
    "a row of 2000000 tokens in 31 kB": lambda s: _rest(
        s, _LONGER_ROW, _GZIP, _QA
    ),
    "clients that leave a long row": _leave_long_row,
    "a row of 256 choices": lambda s: _rest(s, _choices(256), path=_CHOICE),
    "a row of 9000 choices": lambda s: _rest(s, _choices(9000), path=_CHOICE),
    "bytes that are no tf.Example": lambda s: _rest(
        s,
        b'{"signature_name": "from_examples", '
        b'"instances": [{"examples": {"b64": "////"}}]}',
    ),
    "unconfirmed metadata of 1 MB": _metadata,
    "73 kB of gzip": lambda s: _rest(s, _BOMB, _GZIP),
    "repeated number of 22 GB": _numbers,
    "60 repeated numbers of 64 MB": _many_numbers,
    "repeated string of 22 GB": lambda s: _grpc(
        s, predict_request(text_proto(["a" * 1000], 22_000_000))
    ),
    "100000 rows": lambda s: _rest(s, json.dumps(_texts(100_000, 1))),
    "9000 long rows": lambda s: _rest(s, _LONG_ROWS),
    "JSON 100000 deep": lambda s: _rest(s, b'{"a":' + b"[" * 100_000),
    "5 million lists": lambda s: _rest(s, _MANY_LISTS),
    "15 MB of text": lambda s: _rest(
        s, json.dumps(_texts(1, 15 << 17)), timeout=TIMEOUT_SECONDS
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
        s, predict_request(text_proto(["account " * 200] * 512)), timeout=0.05
    ),
    "foreign page": lambda s: _rest(
        s, json.dumps(HONEST), {"Origin": "http://evil.example"}
    ),
    "foreign host": lambda s: _rest(
        s, json.dumps(HONEST), {"Host": "evil.example"}
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
