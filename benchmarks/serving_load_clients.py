"""The clients of serving_load.py, in a separate process.

    python serving_load_clients.py SETTINGS

Each client sends a request, waits for the answer and sends the next one. At the
end, one line of JSON has the results.
"""

import asyncio
import collections
import itertools
import json
import sys
import time


async def _client(settings, bodies, deadline, result):
    """Sends requests over one connection until the deadline."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", settings["port"]
    )
    head = (
        f"POST /v1/models/{settings['model']}:predict HTTP/1.1\r\n"
        "Host: localhost\r\nContent-Length: "
    )
    while time.perf_counter() < deadline:
        body = next(bodies)
        start = time.perf_counter()
        writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
        answer_head = await reader.readuntil(b"\r\n\r\n")
        fields = answer_head.lower().split(b"\r\n")
        (length,) = [
            int(field.split(b":")[1])
            for field in fields
            if field.startswith(b"content-length:")
        ]
        await reader.readexactly(length)
        status = int(fields[0].split()[1])
        result["statuses"][status] += 1
        result["seconds"].append(time.perf_counter() - start)
        if status == 503:
            # Wait like a real client, or else refusals would crowd out answers.
            await asyncio.sleep(0.01)
    writer.close()


async def _run(settings):
    bodies = itertools.cycle(
        json.dumps({"instances": [{"text": text}]}).encode()
        for text in settings["texts"]
    )
    result = {"statuses": collections.Counter(), "seconds": []}
    start = time.perf_counter()
    deadline = start + settings["seconds"]
    await asyncio.wait_for(
        asyncio.gather(
            *(
                _client(settings, bodies, deadline, result)
                for _ in range(settings["clients"])
            )
        ),
        settings["seconds"] + settings["patience_seconds"],
    )
    wall = time.perf_counter() - start
    seconds = sorted(result["seconds"])
    return {
        "statuses": result["statuses"],
        "per_second": result["statuses"][200] / wall,
        "p50": seconds[len(seconds) // 2],
        "p99": seconds[len(seconds) * 99 // 100],
        "longest": seconds[-1],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(json.loads(sys.argv[1])))))
