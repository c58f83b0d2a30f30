"""Sends requests to a server with ovmsclient, over gRPC and REST.

    python ovmsclient_program.py GRPC_ADDRESS REST_ADDRESS REQUESTS.json ANSWERS

A program for an environment with ovmsclient, without TensorFlow. Each
request is a JSON object: `call`, a method of ovmsclient's clients, and its
`arguments`. The file ANSWERS gets, as JSON, a pair for each request: the
answers over gRPC and over REST. An error is written with its class and text.
"""

import json
import sys

import ovmsclient
from ovmsclient import grpcclient
from ovmsclient import httpclient


def to_json(value):
    if isinstance(value, dict):
        return {str(key): to_json(value[key]) for key in value}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [to_json(x) for x in value]
    return value.decode() if isinstance(value, bytes) else value


def answer(client, request):
    try:
        call = getattr(client, request["call"])
        return to_json(call(**request["arguments"]))
    except (ovmsclient.ModelServerError, ConnectionError) as error:
        return {"error": type(error).__name__, "message": str(error)}


def main(grpc_address, rest_address, requests_path, answers_path):
    clients = (
        grpcclient.make_client(grpc_address),
        httpclient.make_client(rest_address),
    )
    with open(requests_path, encoding="utf-8") as file:
        requests = json.load(file)
    answers = [[answer(c, request) for c in clients] for request in requests]
    with open(answers_path, "w", encoding="utf-8") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
