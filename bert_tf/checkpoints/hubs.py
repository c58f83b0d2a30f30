"""Fetches models from the hubs of Hugging Face and Kaggle, by their libraries.

Each library keeps its own cache (HF_HOME, KAGGLEHUB_CACHE), takes its own
variables for access (HF_TOKEN, HF_ENDPOINT, KAGGLE_API_TOKEN, ...) and resumes
its own downloads. They are imported only here, when such a name is used.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import logging as python_logging
import os
import re
import sys
import types
from collections.abc import Iterator
from collections.abc import Sequence

from absl import logging

from bert_tf.errors import UserError
from bert_tf.errors import extras
from bert_tf.io import download
from bert_tf.io import locks
from bert_tf.io import stored_files
from bert_tf.recipes import releases

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20

_HUGGING_FACE_FILES = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# Weights of each format and the other files that belong to them. The first
# format whose weights are there counts: no pickle where there is another file.
_FORMATS = (
    (
        r"(model\.weights|optimizer_state)\.safetensors",
        ("bert_config.json", "vocab.txt", "tokenizer.json", "task.json")
        + ("README.md", "checksums.json"),
    ),
    (r"model\.safetensors", _HUGGING_FACE_FILES),
    (
        r"model\.safetensors\.index\.json|[^/]*\.safetensors",
        _HUGGING_FACE_FILES,
    ),
    (
        r"(model|task)(_\d+)?\.weights\.(h5|json)",
        ("config.json", "metadata.json", "task.json", "preprocessor.json")
        + ("tokenizer.json", "assets/tokenizer/vocabulary.txt"),
    ),
    (
        r"bert_model\.ckpt\.(index|data-\d{5}-of-\d{5})",
        ("bert_config.json", "vocab.txt"),
    ),
    (r"tf_model\.h5", _HUGGING_FACE_FILES),
    (
        r"tf_model\.h5\.index\.json|tf_model-[^/]*\.h5",
        _HUGGING_FACE_FILES,
    ),
    (r"pytorch_model\.bin", _HUGGING_FACE_FILES),
    (
        r"pytorch_model\.bin\.index\.json|pytorch_model-[^/]*\.bin",
        _HUGGING_FACE_FILES,
    ),
)


# === Hugging Face ===


def fetch_hugging_face(name: str, offline: bool) -> str:
    """Returns the folder of a model `hf://owner/name[@revision]`.

    Fetches the files that are needed and missing. A branch is looked up each
    time; if the hub cannot be reached, its last known commit counts.

    Raises:
      UserError: If there is no such model, it needs a token, or it cannot be
        fetched.
    """
    match = releases.parse_hub_name(name)
    repository, revision = match[1], match[2] or "main"
    for library in ("httpx", "httpx2"):  # They log every request.
        python_logging.getLogger(library).setLevel(python_logging.WARNING)
    hub = importlib.import_module("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    errors = importlib.import_module("huggingface_hub.errors")
    http_error = errors.HfHubHTTPError.__mro__[1]
    if offline or constants.HF_HUB_OFFLINE or _COMMIT.fullmatch(revision):
        folder = _cached_snapshot(hub, errors, repository, revision)
        if folder:
            return folder
    if offline or constants.HF_HUB_OFFLINE:
        raise _not_cached(name, constants.HF_HUB_CACHE)
    try:
        return _fetch_snapshot(
            hub, constants, errors, name, repository, revision
        )
    except errors.HfHubHTTPError as error:
        raise UserError(
            _explain_hugging_face(name, repository, error, constants.ENDPOINT)
        ) from error
    except (http_error, errors.LocalEntryNotFoundError, OSError) as error:
        folder = _cached_snapshot(hub, errors, repository, revision)
        reason = str(error).splitlines()[0] if str(error) else ""
        message = (
            f"{name} cannot be fetched from {constants.ENDPOINT} "
            f"({type(error).__name__}: {reason})"
        )
        if not folder:
            raise UserError(
                f"{message}; run the same command again to resume it."
            ) from error
        logging.warning("%s; %s is used.", message, folder)
        return folder


def needed_files(names: Sequence[str]) -> list[str]:
    """Returns the files of a repository that make up its model, sorted."""
    for weights, others in _FORMATS:
        chosen = [name for name in names if re.fullmatch(weights, name)]
        if chosen:
            return sorted(chosen + [name for name in names if name in others])
    return []


def _fetch_snapshot(
    hub: types.ModuleType,
    constants: types.ModuleType,
    errors: types.ModuleType,
    name: str,
    repository: str,
    revision: str,
) -> str:
    info = hub.HfApi().model_info(
        repository, revision=revision, files_metadata=True
    )
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
        size = "size unknown"
        if None not in num_bytes:
            size = releases.format_bytes(sum(num_bytes))
        download.announce(
            f"Fetching {name} at {info.sha} ({len(new)} files, {size}) from "
            f"{constants.ENDPOINT}/{repository} to {folder}."
        )
    elif _cached_snapshot(hub, errors, repository, revision) == folder:
        return folder
    # Also records that the branch is at this commit.
    folder = hub.snapshot_download(
        repository, revision=revision, allow_patterns=chosen
    )
    for file in new:
        _verify_blob(name, os.path.join(folder, file))
    return folder


def _verify_blob(name: str, path: str) -> None:
    """Compares a large file with its ETag, which is its SHA-256."""
    blob = os.path.realpath(path)
    expected = os.path.basename(blob)
    if not _SHA256.fullmatch(expected):
        return
    digest = hashlib.sha256()
    with open(blob, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() == expected:
        return
    os.remove(blob)
    os.remove(path)
    raise UserError(
        f"{name}: {os.path.basename(path)} is damaged: expected the SHA-256 "
        f"{expected}. Received: {digest.hexdigest()}; it was removed, so fetch "
        "it again."
    )


def _cached_snapshot(
    hub: types.ModuleType,
    errors: types.ModuleType,
    repository: str,
    revision: str,
) -> str | None:
    """Returns the complete folder of a cached model, None if there is none."""

    def find(patterns: Sequence[str]) -> str | None:
        try:
            return hub.snapshot_download(
                repository,
                revision=revision,
                local_files_only=True,
                allow_patterns=patterns,
            )
        except errors.LocalEntryNotFoundError:
            return None

    folder = find([])
    if folder is None:
        return None
    present = [
        os.path.relpath(os.path.join(parent, file), folder)
        for parent, _, files in os.walk(folder)
        for file in files
    ]
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
        for weights, others in _FORMATS
        if any(re.fullmatch(weights, x) for x in chosen)
    )
    # Missing ones are noticed by the library's record of the commit's files.
    return find([*chosen, *others])


def _explain_hugging_face(
    name: str, repository: str, error: Exception, endpoint: str
) -> str:
    code = getattr(getattr(error, "response", None), "status_code", None)
    kind = type(error).__name__
    if kind == "RevisionNotFoundError":
        return f"{name}: the model {repository} has no such revision."
    if code in (401, 403):
        return (
            f"{name}: the hub refuses access (status {code}), so the model is "
            "gated, private or not there; accept its terms at "
            f"{endpoint}/{repository}, and set HF_TOKEN to a token of yours."
        )
    if code == 404:
        return (
            f"{name}: there is no such model at {endpoint} (status 404); check "
            "the name, and set HF_TOKEN if the model is private."
        )
    return (
        f"{name}: {endpoint} answered with status {code}; run the same command "
        "again to resume."
    )


# === Kaggle ===


def fetch_kaggle(name: str, offline: bool) -> str:
    """Returns the folder of `kaggle://owner/model/keras/variation[/version]`.

    Or of `.../tensorFlow2/variation`, a SavedModel. Without a version the
    newest one counts.

    Raises:
      UserError: If there is no such model, it needs a login, or it cannot be
        fetched.
    """
    match = releases.parse_hub_name(name)
    with contextlib.redirect_stdout(sys.stderr):  # For its log.
        with extras():
            kagglehub = importlib.import_module("kagglehub")
    requests = importlib.import_module("requests")
    errors = importlib.import_module("kagglehub.exceptions")
    handle = importlib.import_module("kagglehub.handle").parse_model_handle(
        match[1]
    )
    cached = _cached_kaggle(handle)
    if offline:
        if cached:
            return cached
        cache = importlib.import_module("kagglehub.config").get_cache_folder()
        raise _not_cached(name, cache)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # It also prints.
            handle = _newest_version(handle)
            folder = _cached_kaggle(handle)
            if folder:
                return folder
            cache = importlib.import_module("kagglehub.cache")
            # The library itself does not keep processes apart.
            with locks.exclusive(cache.get_cached_path(handle), "fetches"):
                folder = _cached_kaggle(handle)
                if folder:
                    return folder
                _announce_kaggle(name, handle)
                return kagglehub.model_download(str(handle))
    except requests.HTTPError as error:
        raise UserError(_explain_kaggle(name, error)) from error
    except (
        errors.DataCorruptionError,
        errors.UnauthenticatedError,
        requests.RequestException,
        OSError,
    ) as error:
        message = (
            f"{name} cannot be fetched ({type(error).__name__}: "
            f"{' '.join(str(error).split())})"
        )
        if isinstance(error, requests.ConnectionError) and cached:
            logging.warning("%s; %s is used.", message, cached)
            return cached
        raise UserError(f"{message}; run the same command again.") from error


def _cached_kaggle(handle) -> str | None:
    """Returns the complete folder of a cached model, None if there is none."""
    cache = importlib.import_module("kagglehub.cache")

    def find(version: int) -> str | None:
        path = cache.get_cached_path(handle.with_version(version))
        whole = os.path.isdir(path) and os.path.isfile(f"{path}.complete")
        return path if whole else None

    if handle.is_versioned():
        return find(handle.version)
    versions = os.path.dirname(cache.get_cached_path(handle.with_version(1)))
    if not os.path.isdir(versions):
        return None
    numbers = sorted(int(x) for x in os.listdir(versions) if x.isdigit())
    return next(filter(None, map(find, reversed(numbers))), None)


def _newest_version(handle):
    """Returns the handle with a version, the newest one by default."""
    if handle.is_versioned():
        return handle
    api = importlib.import_module("kagglesdk.models.types.model_api_service")
    request = _fill(api.ApiGetModelInstanceRequest(), handle)
    with _kaggle_client() as client:
        answer = client.models.model_api_client.get_model_instance(request)
    return handle.with_version(answer.version_number)


def _announce_kaggle(name: str, handle) -> None:
    api = importlib.import_module("kagglesdk.models.types.model_api_service")
    request = _fill(api.ApiListModelInstanceVersionFilesRequest(), handle)
    request.version_number = handle.version
    with _kaggle_client() as client:
        service = client.models.model_api_client
        files = service.list_model_instance_version_files(request).files
    num_bytes = sum(file.size or 0 for file in files)
    size = releases.format_bytes(num_bytes) if num_bytes else "size unknown"
    download.announce(
        f"Fetching {name}, version {handle.version} ({len(files)} files, "
        f"{size}) from {handle.to_url()}."
    )


def _fill(request, handle):
    """Returns a request of Kaggle's for the model of a handle."""
    request.owner_slug = handle.owner
    request.model_slug = handle.model
    request.framework = handle.framework_enum()
    request.instance_slug = handle.variation
    return request


@contextlib.contextmanager
def _kaggle_client() -> Iterator[object]:
    clients = importlib.import_module("kagglehub.clients")
    with clients.build_kaggle_client() as client:
        yield client


def _explain_kaggle(name: str, error: Exception) -> str:
    code = getattr(error.response, "status_code", None)
    if code in (401, 403):
        return (
            f"{name}: Kaggle refuses access (status {code}); accept the "
            "model's terms on its page, and set KAGGLE_API_TOKEN, or "
            "KAGGLE_USERNAME and KAGGLE_KEY."
        )
    if code == 404:
        return f"{name}: Kaggle has no such model (status 404); check the name."
    return f"{name}: Kaggle answered with status {code}; try again later."


# === Both ===


def _not_cached(name: str, cache: str) -> UserError:
    return UserError(
        f"{name} is not in the cache ({cache}), or not all of it, and "
        "--offline, BERT_TF_OFFLINE or HF_HUB_OFFLINE forbids to fetch it; "
        "fetch it once without."
    )
