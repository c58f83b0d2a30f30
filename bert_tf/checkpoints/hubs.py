"""Downloads models from Hugging Face and Kaggle; uploads to Hugging Face.

The libraries of the hubs keep their caches (HF_HOME, KAGGLEHUB_CACHE), read
environment variables (such as HF_TOKEN, HF_ENDPOINT, KAGGLE_API_TOKEN) and
resume downloads. This module is imported only if a program uses a hub.
"""

import contextlib
import importlib.util
import logging as python_logging
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from collections.abc import Sequence

import huggingface_hub
from absl import logging
from huggingface_hub import constants
from huggingface_hub import errors
from huggingface_hub.utils import _http

from bert_tf.errors import UserError
from bert_tf.errors import extras
from bert_tf.io import download
from bert_tf.io import files
from bert_tf.io import locks
from bert_tf.io import stored_files
from bert_tf.recipes import releases

_COMMIT = re.compile(r"[0-9a-f]{40}")
# The HTTPError of httpx or httpx2; huggingface_hub uses one of them.
_HTTP_ERROR = errors.HfHubHTTPError.__mro__[1]
# Errors of the hubs' libraries; the last four mean malformed answers.
_FAILURES = (
    _HTTP_ERROR,
    OSError,
    RuntimeError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
_SHA256 = re.compile(r"[0-9a-f]{64}")

_HF_FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    # sentence-transformers writes these files for embeddings.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)
# Maps a pattern for a format's weight files to the names of the format's other
# files. The first match wins; pickles, which need PyTorch, come last.
_FORMATS = {
    r"(model\.weights|optimizer_state)\.safetensors": (
        "bert_config.json",
        "vocab.txt",
        "tokenizer.json",
        "task.json",
        "README.md",
        "checksums.json",
    ),
    r"model\.safetensors": _HF_FILES,
    r"model\.safetensors\.index\.json|[^/]*\.safetensors": _HF_FILES,
    r"(model|task)(_\d+)?\.weights\.(h5|json)": (
        "config.json",
        "metadata.json",
        "task.json",
        "preprocessor.json",
        "tokenizer.json",
        "assets/tokenizer/vocabulary.txt",
    ),
    r"bert_model\.ckpt\.(index|data-\d{5}-of-\d{5})": (
        "bert_config.json",
        "vocab.txt",
    ),
    r"tf_model\.h5": _HF_FILES,
    r"tf_model\.h5\.index\.json|tf_model-[^/]*\.h5": _HF_FILES,
    r"pytorch_model\.bin": _HF_FILES,
    r"pytorch_model\.bin\.index\.json|pytorch_model-[^/]*\.bin": _HF_FILES,
}


def fetch_model(name: str, parts: re.Match, offline: bool) -> str:
    """Returns the local folder of a hub's model; downloads it if needed.

    Args:
      name: "hf://owner/name[@revision]", by default "main"; for a branch, each
        call looks up the newest commit. Or
        "kaggle://owner/model/keras/variation[/version]"; for a SavedModel,
        "tensorFlow2" replaces "keras". The default is the newest version.
      parts: The result of `releases.parse_hub_name`.
      offline: If true, nothing is downloaded.

    Raises:
      UserError: If the model does not exist, requires a token or login, or
        cannot be fetched.
    """
    if name.startswith("hf://"):
        return _fetch_hugging_face(name, parts[1], parts[2] or "main", offline)
    return _fetch_kaggle(name, parts[1], offline)


# === Hugging Face ===


def _fetch_hugging_face(
    name: str, repository: str, revision: str, offline: bool
) -> str:
    """Downloads the files that the model needs and the cache lacks.

    If the hub cannot be reached, the cached commit of the branch is used.
    """
    offline = offline or constants.HF_HUB_OFFLINE
    if offline or _COMMIT.fullmatch(revision):
        folder = _cached_snapshot(repository, revision)
        if folder:
            return folder
    if offline:
        raise _not_cached(name, constants.HF_HUB_CACHE)
    hub = constants.ENDPOINT
    try:
        with _limited_answers():
            return _fetch_snapshot(name, repository, revision)
    except _FAILURES as error:
        refusal = _explain(
            error,
            f"{name} cannot be fetched from {hub}",
            f"accept its terms at {hub}/{repository}, and set HF_TOKEN",
            "check the connection, set HF_ENDPOINT to a mirror, or give a "
            "model's directory on disk. The same command resumes what was "
            "fetched",
        )
        is_answer = isinstance(error, errors.HfHubHTTPError)
        if not is_answer and isinstance(error, (_HTTP_ERROR, OSError)):
            folder = _cached_snapshot(repository, revision)
            if folder:
                logging.warning("%s %s is used.", refusal, folder)
                return folder
        raise refusal from None


def needed_files(names: Sequence[str]) -> list[str]:
    """Returns the files of a repository that make up its model, sorted."""
    for weights, others in _FORMATS.items():
        chosen = [name for name in names if re.fullmatch(weights, name)]
        if chosen:
            return sorted(chosen + [name for name in names if name in others])
    return []


@contextlib.contextmanager
def _limited_answers() -> Iterator[None]:
    """Limits size and time of answers; huggingface_hub has no such limits.

    huggingface_hub takes the names of its cache files from HTTP headers. Names
    with a slash or two periods are errors, as they could lead out of the cache.
    """
    for library in ("httpx", "httpx2"):  # Otherwise they log every request.
        python_logging.getLogger(library).setLevel(python_logging.WARNING)
    make = _http._GLOBAL_CLIENT_FACTORY

    def make_limited():
        client = make()
        client.timeout = download.TIMEOUT_SECONDS
        hooks = client.event_hooks
        hooks["request"].append(check_redirection)
        hooks["response"].append(limit)
        client.event_hooks = hooks
        return client

    def check_redirection(request):
        download.check_redirection(constants.ENDPOINT, str(request.url))

    def limit(response):
        for key in ("etag", "x-linked-etag", "x-repo-commit"):
            value = response.headers.get(key, "").removeprefix("W/")
            if "/" in value or ".." in value:
                raise UserError(
                    f"{response.url} states the {key} {value:.100}, which is "
                    "no name of a version."
                )
        is_api = response.url.path.startswith("/api/")
        most = stored_files.MAX_BYTES if is_api else download.MAX_BYTES
        raw, decoded = response.iter_raw, response.iter_bytes

        def iter_raw(chunk_size=None):
            pace = download.Pace()
            for chunk in raw(chunk_size):
                pace.add(len(chunk))
                pace.seconds_left()
                yield chunk

        def iter_bytes(chunk_size=None):
            num_bytes = 0
            for chunk in decoded(chunk_size):
                num_bytes += len(chunk)
                if num_bytes > most:
                    raise download.too_large(response.url, most)
                yield chunk

        response.iter_raw, response.iter_bytes = iter_raw, iter_bytes

    huggingface_hub.set_client_factory(make_limited)
    try:
        yield
    finally:
        huggingface_hub.set_client_factory(make)


def _fetch_snapshot(name: str, repository: str, revision: str) -> str:
    info = huggingface_hub.HfApi().model_info(
        repository,
        revision=revision,
        files_metadata=True,
        timeout=download.TIMEOUT_SECONDS,
    )
    if not _COMMIT.fullmatch(info.sha):
        raise ValueError(f"the commit {info.sha!r:.100}")
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    chosen = needed_files(list(sizes))
    if not chosen:
        raise UserError(
            f"{name} holds no weights of a known format. Received: "
            f"{', '.join(sorted(sizes)[:12]) or 'no files'}."
        )
    if any(x.endswith(".bin") for x in chosen) and not importlib.util.find_spec(
        "torch"
    ):
        raise UserError(
            f"{name} has only pickles of PyTorch as weights "
            "(pytorch_model.bin), which need PyTorch, which is not installed; "
            "`pip install torch`, or choose a model with safetensors."
        )
    folder = os.path.join(
        constants.HF_HUB_CACHE,
        f"models--{repository.replace('/', '--')}",
        "snapshots",
        info.sha,
    )
    new = [x for x in chosen if not os.path.isfile(os.path.join(folder, x))]
    if new:
        num_bytes = [sizes[x] for x in new]
        size = None if None in num_bytes else sum(num_bytes)
        if size and max(num_bytes) > download.MAX_BYTES:
            raise download.too_large(name, download.MAX_BYTES)
        download.announce(
            f"Fetching {name} at {info.sha} ({len(new)} files, "
            f"{releases.format_bytes(size)}) from "
            f"{constants.ENDPOINT}/{repository} to {folder}."
        )
    elif _cached_snapshot(repository, revision) == folder:
        return folder
    # Call this even if no file is new, to record the commit for offline use.
    folder = huggingface_hub.snapshot_download(
        repository, revision=revision, allow_patterns=chosen
    )
    for file in chosen:
        if not os.path.isfile(path := os.path.join(folder, file)):
            raise ValueError(f"it lists {file} and has none")
        if file in new:
            _verify_blob(name, path)
    return folder


def _verify_blob(name: str, path: str) -> None:
    """Checks a large file's SHA-256, which is the file's name in the cache."""
    blob = os.path.realpath(path)
    expected = os.path.basename(blob)
    is_hash = _SHA256.fullmatch(expected)
    if not is_hash or (actual := files.sha256(blob)) == expected:
        return
    os.remove(blob)
    os.remove(path)
    raise UserError(
        f"{name}: {os.path.basename(path)} is damaged: expected the SHA-256 "
        f"{expected}. Received: {actual}; it was removed, so fetch it again."
    )


def _cached_snapshot(repository: str, revision: str) -> str | None:
    """Returns the folder of a model if all of it is in the cache, else None."""

    def cached(patterns: Sequence[str]) -> str | None:
        try:
            return huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                local_files_only=True,
                allow_patterns=patterns,
            )
        except errors.LocalEntryNotFoundError:
            return None

    folder = cached([])
    if folder is None:
        return None
    present = _files_in(folder)
    chosen = set(needed_files(present))
    for index in [x for x in chosen if x.endswith(".index.json")]:
        values = stored_files.read_object(os.path.join(folder, index))
        stored_files.check(
            values, {"weight_map": stored_files.OBJECT}, index, ("weight_map",)
        )
        chosen |= set(map(str, values["weight_map"].values()))
    if not chosen or not chosen <= set(present):
        return None
    others = next(
        others
        for weights, others in _FORMATS.items()
        if any(re.fullmatch(weights, x) for x in chosen)
    )
    # The result is None if the cache lacks a file of the commit.
    return cached([*chosen, *others])


def push_model(name: str, path: str, overwrite: bool = False) -> str:
    """Uploads a model to Hugging Face's hub; returns its address.

    Args:
      name: The repository, "hf://owner/name"; created if it does not exist.
      path: A model directory or a Hugging Face directory.
      overwrite: Whether a new commit may replace the model in an existing
        repository.

    Raises:
      UserError: If there is no model at `path`, the name is taken, the token is
        missing, or the hub refuses the upload.
    """
    parts = releases.parse_hub_name(name) if name.startswith("hf://") else None
    if not parts or parts[2]:
        raise UserError(
            "--push must be hf://owner/name, without a revision. Received: "
            f"{name!r}."
        )
    chosen = needed_files(_files_in(path))
    if not any(file.endswith(".safetensors") for file in chosen):
        raise UserError(
            "--model_dir must be a local folder: a model directory, or the "
            "Hugging Face form of a model with safetensors, which "
            "run/convert_checkpoint.py --to=huggingface writes. Received: "
            f"{path!r}."
        )
    hub, advice = constants.ENDPOINT, "set HF_TOKEN to one that may write"
    if not huggingface_hub.get_token():
        raise UserError(
            f"{name}: {hub} needs a token; {advice}, or run `hf auth login`."
        )
    try:
        with _limited_answers():
            _push(name, parts[1], path, chosen, overwrite)
    except _FAILURES as error:
        raise _explain(
            error,
            f"{name} cannot be uploaded to {hub}",
            advice,
            "run the same command again, with --overwrite if the repository is "
            "there by then",
        ) from None
    return f"{hub}/{parts[1]}"


def _push(
    name: str, repository: str, path: str, chosen: list[str], overwrite: bool
) -> None:
    api, stale = huggingface_hub.HfApi(), set()
    if api.repo_exists(repository):
        if not overwrite:
            raise UserError(
                f"{name} exists already; choose another name, or add "
                "--overwrite to replace the model in it by a new commit."
            )
        # Delete the old model's files: otherwise they might be read instead.
        stale = {*needed_files(api.list_repo_files(repository))} - {*chosen}
    # Import after the checks, as these imports take seconds (TensorFlow).
    from bert_tf.checkpoints import formats
    from bert_tf.checkpoints import model_directory

    stored, readme = formats.read(path), model_directory.README_FILE
    card = model_directory.default_card(stored, "transformers")
    if os.path.isfile(own := os.path.join(path, readme)):
        card = files.read_bytes(own).decode("utf-8", "replace")
    contents = {file: os.path.join(path, file) for file in chosen}
    contents[readme] = _with_license(card).encode()
    address = f"{constants.ENDPOINT}/{repository}"
    download.announce(f"Uploading {len(contents)} files to {address}.")
    api.create_repo(repository, exist_ok=True)
    add = huggingface_hub.CommitOperationAdd
    delete = huggingface_hub.CommitOperationDelete
    api.create_commit(
        repository,
        [add(*x) for x in contents.items()]
        + [delete(x) for x in stale - {readme}],
        commit_message="Upload a model by bert_tf",
    )


def _with_license(card: str) -> str:
    """Returns the card; replaces an unknown license by the base model's."""
    base = re.search(r'^base_model: "(.+)"$', card, re.MULTILINE)
    unknown = 'license: "unknown"'
    if base and unknown in card:
        with contextlib.suppress(errors.HfHubHTTPError):
            data = huggingface_hub.HfApi().model_info(base[1]).card_data
            if data and isinstance(data.license, str):
                card = card.replace(unknown, f'license: "{data.license}"', 1)
    return card


def _files_in(folder: str) -> list[str]:
    """Returns the paths of all files below a folder, relative to it."""
    found = (x for x in pathlib.Path(folder).rglob("*") if not x.is_dir())
    return [str(x.relative_to(folder)) for x in found]


# === Kaggle ===


def _fetch_kaggle(name: str, handle: str, offline: bool) -> str:
    with contextlib.redirect_stdout(sys.stderr), extras():  # The import prints.
        import kagglehub
        import requests
        from kagglehub import cache
        from kagglehub import config
        from kagglehub import exceptions
        from kagglehub.handle import parse_model_handle
    handle = parse_model_handle(handle)
    cached = _cached_kaggle(handle)
    if offline:
        if cached:
            return cached
        raise _not_cached(name, config.get_cache_folder())
    # Without a lock, two processes of kagglehub would write the same files.
    place = cache.get_cached_path(handle.with_version(1))
    lock = locks.exclusive(os.path.dirname(place), "fetches")
    try:
        # kagglehub prints progress, but standard output is for results.
        with lock, contextlib.redirect_stdout(sys.stderr):
            folder = kagglehub.model_download(str(handle))
        if folder != cached:
            download.announce(
                f"Fetched {name} from {handle.to_url()} to {folder}."
            )
        return folder
    except (
        exceptions.DataCorruptionError,
        exceptions.UnauthenticatedError,
        *_FAILURES,
    ) as error:
        refusal = _explain(
            error,
            f"{name} cannot be fetched from Kaggle",
            "accept its terms on its page, and set KAGGLE_API_TOKEN, or "
            "KAGGLE_USERNAME and KAGGLE_KEY",
            "check the connection and run the same command again, or give a "
            "model's directory on disk",
        )
        if isinstance(error, requests.ConnectionError) and cached:
            logging.warning("%s %s is used.", refusal, cached)
            return cached
        raise refusal from None


def _cached_kaggle(handle) -> str | None:
    """Returns the folder of a model if all of it is in the cache, else None."""
    from kagglehub import cache

    numbers = [handle.version]
    if not handle.is_versioned():
        first = cache.get_cached_path(handle.with_version(1))
        parent = pathlib.Path(first).parent
        numbers = [int(x.name) for x in parent.glob("*") if x.name.isdigit()]
    for number in sorted(numbers, reverse=True):
        path = cache.get_cached_path(handle.with_version(number))
        if os.path.isdir(path) and os.path.isfile(f"{path}.complete"):
            return path
    return None


# === Both hubs ===


def _explain(
    error: Exception, failure: str, access: str, advice: str
) -> UserError:
    """Returns the error to raise for an error of a hub's library.

    `access` says how to get access; `advice`, what to do if no status was sent.
    """
    if isinstance(error, UserError):
        return error
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code in (401, 403):
        reason = f"the hub refuses access (status {code}); {access}"
    elif code == 404:
        reason = (
            "the hub has no such model or revision (status 404); check the "
            f"name, and, if it is private, {access}"
        )
    elif code:
        reason = f"the hub answered with status {code}; try again later"
    else:
        text = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {text:.200}; {advice}"
    return UserError(f"{failure}: {reason}.")


def _not_cached(name: str, cache: str) -> UserError:
    return UserError(
        f"{name} is not in the cache ({cache}), or not all of it, and "
        "--offline, BERT_TF_OFFLINE or HF_HUB_OFFLINE forbids to fetch it; "
        "fetch it once without."
    )
