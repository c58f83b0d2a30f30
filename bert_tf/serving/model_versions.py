"""What is known of the versions of a model."""

import dataclasses

from bert_tf.serving import errors
from bert_tf.serving.model_config import ModelConfig
from bert_tf.serving.servable import Servable

# The states of a version, as `ModelVersionStatus` names them.
START = "START"
LOADING = "LOADING"
AVAILABLE = "AVAILABLE"
UNLOADING = "UNLOADING"
END = "END"


@dataclasses.dataclass
class Version:
    """What is known of a version.

    Attributes:
      state: One of the states above.
      error: Why it is not served, or None.
      servable: The version, if it is loaded.
      files: What its directory held when it failed.
    """

    state: str = START
    error: errors.RequestError | None = None
    servable: Servable | None = None
    files: frozenset | None = None

    def current_state(self) -> str:
        """Returns the state; a version unloads while somebody uses it."""
        if self.state == UNLOADING and self.servable.wait_closed(0):
            self.state = END
        return self.state


class Model:
    """A model and its versions."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.versions: dict[int, Version] = {}

    def available(self) -> list[int]:
        """Returns the versions that answer requests, the newest last."""
        return sorted(
            number
            for number, version in self.versions.items()
            if version.state == AVAILABLE
        )
