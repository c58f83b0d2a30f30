"""Takes the pictures of the server's page and of the documentation's site.

    python -m tools.docs_pictures        `make docs-pictures`

Needs Debian's chromium and chromium-driver, and the site in .site/. The server
has MiniLM, from the tests' requirements, trained on docs/samples/topics as in
the guide.
"""

import contextlib
import functools
import http.server
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from PIL import Image

from tests.support import browser
from tests.support import live_server
from tests.support import minilm

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_IMAGES = _ROOT / "docs" / "images"
_TEXT = "The ferry was canceled, so the team missed the final."
# Address and whether it is shown in dark colors.
_PAGES = (
    ("", False),
    ("quickstart.html", True),
    ("guides/classify.html", False),
    ("concepts/bert.html", True),
    ("notebooks/classify.html", False),
    ("reference/api/classes.html", True),
)
# Width of a page in pixels, columns of the picture, and the scale in it.
_SITE = {"site_desktop.jpg": (1280, 3, 0.4), "site_phone.jpg": (390, 6, 0.5)}
_HEIGHT = 900


def _run(script, *words):
    subprocess.run([sys.executable, script, *words], cwd=_ROOT, check=True)


def take_server_page(window, path):
    """Trains a classifier, serves it and takes its page with curl unfolded."""
    samples = "docs/samples/topics"
    with tempfile.TemporaryDirectory() as folder:
        _run(
            "run/finetune_classifier.py",
            *("--task_name=custom", "--do_train", f"--output_dir={folder}/out"),
            *("--text_column=text", "--label_column=topic"),
            f"--train_file={samples}/train.csv",
            f"--dev_file={samples}/dev.csv",
            f"--pretrained_model_dir={minilm.directory()}",
            *("--learning_rate=1e-4", "--num_train_epochs=5"),
            *("--train_batch_size=16", "--max_seq_length=64"),
        )
        served = os.path.join(folder, "topics")
        _run(
            "export/savedmodel.py",
            f"--model_dir={folder}/out/model",
            f"--output_dir={served}",
        )
        with live_server.serve(folder, {"topics": served}) as (_, address):
            window.open(f"http://{address}/#topics")
            window.script(
                "arguments[0].value = arguments[1];"
                "arguments[0].dispatchEvent(new Event('input'));",
                window.find("textarea"),
                _TEXT,
            )
            window.find("button.primary").click()
            window.wait(
                lambda: (
                    "ms" in window.find("#result").text
                    and not window.all("#result[aria-busy=true]")
                ),
                "There is no answer.",
            )
            window.script("document.querySelector('details').open = true;")
            height = window.script("return document.body.scrollHeight;")
            path.write_bytes(window.picture(1000, height))


@contextlib.contextmanager
def _serve_site():
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=_ROOT / ".site"
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def take_site(window, path, address, width, columns, scale):
    """Takes the tops of some pages, side by side."""
    size = round(width * scale), round(_HEIGHT * scale)
    rows = -(-len(_PAGES) // columns)
    picture = Image.new("RGB", (size[0] * columns, size[1] * rows))
    window.use_width(width)
    for number, (page, is_dark) in enumerate(_PAGES):
        window.use_dark(is_dark)
        window.open(f"{address}/{page}")
        window.find("h1")
        time.sleep(1)  # The tabs of the site fade in.
        part = Image.open(io.BytesIO(window.picture(width, _HEIGHT)))
        row, column = divmod(number, columns)
        picture.paste(
            part.convert("RGB").resize(size), (column * size[0], row * size[1])
        )
    picture.save(path, quality=50)


def main():
    window = browser.start()
    with contextlib.closing(window):
        window.use_width(1000, scale=1)
        take_server_page(window, _IMAGES / "page.png")
        with _serve_site() as address:
            for name, settings in _SITE.items():
                take_site(window, _IMAGES / name, address, *settings)


if __name__ == "__main__":
    main()
