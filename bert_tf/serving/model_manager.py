"""Loads new versions of the served models and retires old ones.

The old version serves until the new one is loaded, and closes when its last
request is answered. A version that cannot be loaded is skipped until its files
change; loaded versions keep serving.
"""

import contextlib
import dataclasses
import gc
import stat
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

from absl import logging

from bert_tf.errors import UserError
from bert_tf.errors import program
from bert_tf.io import files as file_system
from bert_tf.serving import calls
from bert_tf.serving import errors
from bert_tf.serving import model_config
from bert_tf.serving.model_config import ModelConfig
from bert_tf.serving.servable import Engine
from bert_tf.serving.servable import Servable

# States of a version, named as in TensorFlow Serving's `ModelVersionStatus`.
START = "START"
LOADING = "LOADING"
AVAILABLE = "AVAILABLE"
UNLOADING = "UNLOADING"
END = "END"

# When the server stops, it waits this many seconds for versions to load.
_STOP_SECONDS = 5


@dataclasses.dataclass
class Version:
    """The state of a version.

    Attributes:
      error: The reason why the version is not served, or None.
      servable: The loaded version, or None.
      files: If loading failed, the fingerprint of the directory; else None.
    """

    state: str = START
    error: errors.RequestError | None = None
    servable: Servable | None = None
    files: frozenset | None = None

    def current_state(self) -> str:
        """Returns the state; UNLOADING becomes END after the last request."""
        if self.state == UNLOADING and self.servable.wait_closed(0):
            self.state = END
        return self.state


class Model:
    """A model and its versions."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.versions: dict[int, Version] = {}
        # A lock: one thread at a time checks for new versions of the model.
        self.refreshing = threading.Lock()

    def available(self) -> list[int]:
        """Returns the versions that serve requests, the newest last."""
        return sorted(
            number
            for number, version in self.versions.items()
            if version.state == AVAILABLE
        )


class ModelManager:
    """Keeps the configured versions of models loaded.

    Args:
      warm_up: If true, runs a version's warmup requests before other requests.
      on_change: Called with a model's name, its version, and True if the
        version was loaded or False if it was retired.
    """

    def __init__(
        self,
        engine: Engine,
        warm_up: bool = True,
        on_change: Callable[[str, int, bool], None] = lambda *_: None,
    ) -> None:
        self._engine = engine
        self._warm_up = warm_up
        self._on_change = on_change
        self._models: dict[str, Model] = {}
        # A lock for models and versions; no thread holds it while loading.
        self._lock = threading.Lock()
        # A lock: one thread at a time replaces the models.
        self._configuring = threading.Lock()
        self._stopping = threading.Event()
        self._unready = threading.Event()
        self._reported = set()

    def start(
        self, configs: Sequence[ModelConfig], poll_seconds: float
    ) -> None:
        """Loads the models, then polls for versions if `poll_seconds` > 0."""
        with self._configuring:
            self._models = {config.name: Model(config) for config in configs}
            for model in self._models.values():
                model_config.check_base_path(model.config, self._engine.missing)
            for model in self._models.values():
                self._refresh(model)
                self._check_started(model, model.available())
        if poll_seconds > 0:
            threading.Thread(
                target=self._poll, args=(poll_seconds,), daemon=True
            ).start()

    def reconfigure(self, configs: Sequence[ModelConfig]) -> None:
        """Replaces the served models; unchanged models stay loaded.

        New versions are loaded first; if loading fails, the old models stay.

        Raises:
          RequestError: If a model cannot be served.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._configuring)
            old = self._models
            for model in old.values():
                stack.enter_context(model.refreshing)
            new = {}
            try:
                for config in configs:
                    model_config.check_base_path(config, self._engine.missing)
                for config in configs:
                    model = new[config.name] = Model(config)
                    self._take_over(model, old.get(config.name))
            except UserError as error:
                self._retire_all(new, kept=old)
                raise errors.failed_precondition(str(error)) from error
            with self._lock:
                self._models = new
            self._retire_all(old, kept=new)
            for model in new.values():
                self._check(model)

    def _take_over(self, model: Model, old: Model | None) -> None:
        """Loads a new configuration's versions, while old versions serve."""
        config = model.config
        is_same = old and old.config.base_path == config.base_path
        if is_same:
            model.versions = dict(old.versions)
        chosen = self._load_chosen(model)
        # If no version is chosen, old versions in the same folder keep serving.
        self._check_started(model, sorted(chosen) or model.available())
        if old and old.available() and not (chosen or is_same):
            raise UserError(
                f"Model {config.name} has no version in {config.base_path!r}, "
                "and would no longer be served."
            )

    def _retire_all(
        self, models: dict[str, Model], kept: dict[str, Model]
    ) -> None:
        """Retires the versions of models, except those that `kept` has."""
        for name, model in models.items():
            versions = kept[name].versions if name in kept else {}
            for number in model.available():
                if versions.get(number) is not model.versions[number]:
                    self._retire(model, number)

    def stop(self) -> None:
        """Stops checking for versions and retires all models."""
        self._stopping.set()
        models = self._models
        for name, model in models.items():
            # A version that is slow to load must not delay the server's stop.
            seconds = _STOP_SECONDS / len(models)
            if model.refreshing.acquire(timeout=seconds):
                self._retire_all({name: model}, kept={})
                model.refreshing.release()

    def set_unready(self) -> None:
        """Makes `is_ready` return False, so that no new requests are sent."""
        self._unready.set()

    def is_ready(self) -> bool:
        """Returns True if every model has a version that serves."""
        with self._lock:
            return not self._unready.is_set() and all(
                model.available() for model in self._models.values()
            )

    def names(self) -> list[str]:
        """Returns the names of the models."""
        with self._lock:
            return list(self._models)

    @contextlib.contextmanager
    def use(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> Iterator[Servable]:
        """Yields a version and keeps it loaded; by default the newest.

        Raises:
          RequestError: If the version is not served.
        """
        if not name:
            raise errors.invalid("ModelSpec has no name specified.")
        servable = self._acquire(name, self._number(name, version, label))
        try:
            yield servable
        finally:
            servable.release()

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[tuple[int, str, errors.RequestError | None]]:
        """Returns number, state and error of versions, the newest first.

        Raises:
          RequestError: If there is no such model or version.
        """
        number = self._number(name, version, label)
        shown = errors.shortened(name)
        with self._lock:
            model = self._models.get(name)
            versions = dict(model.versions) if model else {}
        if number is not None:
            if number not in versions:
                raise errors.not_found(
                    f"Could not find version {number} of model {shown}"
                )
            versions = {number: versions[number]}
        if not versions:
            raise errors.not_found(
                f"Could not find any versions of model {shown}"
            )
        return [
            (number, entry.current_state(), entry.error)
            for number, entry in sorted(versions.items(), reverse=True)
        ]

    def _number(
        self, name: str, version: int | None, label: str | None
    ) -> int | None:
        """Returns the version number of a label; without a label, `version`."""
        if label is None:
            return version
        with self._lock:
            model = self._models.get(name)
            if model is None or label not in model.config.labels:
                raise errors.invalid(
                    "Unrecognized servable version label: "
                    f"{errors.shortened(label)}"
                )
            return model.config.labels[label]

    def _acquire(self, name: str, version: int | None) -> Servable:
        with self._lock:
            model = self._models.get(name)
            available = model.available() if model else []
            number = version
            if version is None and available:
                number = available[-1]
            if number not in available:
                selector = f"Latest({errors.shortened(name)})"
                if version is not None:
                    selector = f"Specific({errors.shortened(name)}, {version})"
                raise errors.not_found(
                    f"Servable not found for request: {selector}"
                )
            servable = model.versions[number].servable
            # Without the lock, the version could close before `acquire`.
            servable.acquire()
            return servable

    def _check_started(self, model: Model, available: Sequence[int]) -> None:
        """Raises `UserError` if all versions failed or a label's is missing."""
        failed = {
            number: version.error
            for number, version in model.versions.items()
            if version.state == END and version.error
        }
        if failed and not available:
            number = max(failed)
            raise UserError(
                f"Version {number} of model {model.config.name} cannot be "
                f"loaded: {failed[number].message}"
            )
        for label, number in model.config.labels.items():
            if number not in available:
                raise UserError(
                    f"The label {label!r} of model {model.config.name} names "
                    f"version {number}, which is not served. Served are: "
                    f"{available}."
                )
        if not available:
            logging.warning(
                "Model %s has no version yet: waiting for a folder such as "
                "%s/1, which `%s --model_dir=MODEL --output_dir=%s` writes.",
                model.config.name,
                model.config.base_path,
                program("export/savedmodel.py"),
                model.config.base_path,
            )

    def _poll(self, seconds: float) -> None:
        while not self._stopping.wait(seconds):
            for model in self._models.values():
                # Start a thread per model, so that no model waits for another.
                if not model.refreshing.locked():
                    threading.Thread(
                        target=self._check, args=(model,), daemon=True
                    ).start()

    def _check(self, model: Model) -> None:
        """Checks for a model's new versions, unless the model was replaced."""
        with model.refreshing:
            if self._models.get(model.config.name) is not model:
                return
            try:
                self._refresh(model)
            except Exception:  # noqa: BLE001  # The next check may succeed.
                logging.exception("Checking for new versions failed.")

    def _refresh(self, model: Model) -> None:
        """Loads the selected versions, then retires all other versions."""
        chosen = self._load_chosen(model)
        # If all folders disappear, the loaded versions keep serving.
        others = set(model.available()) - chosen if chosen else ()
        for number in others:
            self._retire(model, number)
        if others:
            gc.collect()  # Or else reference cycles would keep the graphs.

    def _load_chosen(self, model: Model) -> set[int]:
        """Loads the versions that the policy selects; returns their numbers.

        Returns an empty set if the manager stops or cannot read the base path.
        """
        config = model.config
        try:
            directories = model_config.find_versions(config.base_path)
            complete = self._complete(model, directories)
        except (OSError, *file_system.remote_errors(config.base_path)) as error:
            self._report(
                config.name, f"Cannot read {config.base_path}: {error}"
            )
            return set()
        chosen = config.policy.choose(complete)
        while missing := chosen - set(model.available()):
            if self._stopping.is_set():
                return set()
            newest = max(missing)
            if not self._load(model, newest, directories[newest]):
                # Choose again without this version, which failed to load.
                complete.discard(newest)
                chosen = config.policy.choose(complete)
        return chosen

    def _complete(self, model: Model, directories: dict[int, str]) -> set[int]:
        """Returns complete versions, except failed ones that did not change."""
        complete = set()
        for number, directory in directories.items():
            try:
                missing = self._engine.missing(directory)
            except OSError as error:
                missing = f"readable files: {error}"
            version = model.versions.get(number)
            if version and version.state == AVAILABLE:
                complete.add(number)
            elif missing:
                message = (
                    f"Version {number} of model {model.config.name} is not "
                    f"whole yet: {directory} has no {missing}"
                )
                self._report(directory, message)
                with self._lock:
                    model.versions[number] = Version(
                        error=errors.not_found(message)
                    )
            elif (
                version is None
                or version.files is None
                or version.files != model_config.fingerprint(directory)
            ):
                complete.add(number)
        with self._lock:
            for number in set(model.versions) - set(directories):
                state = model.versions[number].current_state()
                if state in (START, END):
                    del model.versions[number]
        return complete

    def _load(self, model: Model, number: int, directory: str) -> bool:
        """Loads a version; returns True on success."""
        name = model.config.name
        version = Version(LOADING)
        files = model_config.fingerprint(directory)
        with self._lock:
            model.versions[number] = version
        logging.info("Loading version %d of model %s.", number, name)
        try:
            with file_system.local_copy(directory) as local:
                _check_regular(local)
                servable = self._engine.load(name, number, local)
                try:
                    if self._warm_up:
                        calls.warm_up(servable, local)
                except BaseException:
                    servable.retire()
                    raise
        except Exception as exception:  # noqa: BLE001  # Old versions serve.
            error = errors.from_exception(exception)
            logging.error(
                "Version %d of model %s cannot be loaded and is skipped until "
                "its files change: %s",
                number,
                name,
                error,
            )
            with self._lock:
                version.state, version.error, version.files = END, error, files
            return False
        with self._lock:
            version.state, version.servable = AVAILABLE, servable
        logging.info("Version %d of model %s is served.", number, name)
        self._on_change(name, number, True)
        return True

    def _retire(self, model: Model, number: int) -> None:
        with self._lock:
            version = model.versions[number]
            version.state = UNLOADING
            version.servable.retire()
        logging.info(
            "Version %d of model %s is no longer served.",
            number,
            model.config.name,
        )
        self._on_change(model.config.name, number, False)

    def _report(self, what: str, message: str) -> None:
        """Logs a warning only once, not at every check."""
        if (what, message) not in self._reported:
            self._reported.add((what, message))
            logging.warning("%s", message)


def _check_regular(directory: str) -> None:
    """Refuses a version with a pipe, device or socket, or too many folders.

    Reading a pipe could block forever; reading many folders could take minutes.
    """
    for path, status in model_config.walk(directory):
        if not stat.S_ISREG(status.st_mode):
            raise errors.failed_precondition(
                f"{path} is not a regular file, or a folder too many"
            )
