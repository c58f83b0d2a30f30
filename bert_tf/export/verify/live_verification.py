"""Whether a live server says of an export what its model says."""

from collections.abc import Mapping
from collections.abc import Sequence

from bert_tf.export.artifact import Artifact
from bert_tf.export.graph_file import Signature
from bert_tf.export.verify import judging
from bert_tf.export.verify import live as live_clients
from bert_tf.export.verify.calls import Planned
from bert_tf.export.verify.live import LiveServer
from bert_tf.export.verify.live import OwnMethods
from bert_tf.export.verify.live import RefusedError
from bert_tf.export.verify.report import Check

_AVAILABLE = "AVAILABLE"


def check(
    url: str,
    artifact: Artifact,
    signatures: Mapping[str, Signature],
    planned: Sequence[Planned],
    tolerance: float,
) -> list[Check]:
    """Asks a server all that an export answers.

    Each signature by the interface for all of them, but for calls that it
    cannot say; `classify` and `regress` by their own, too; and what is served,
    and in which state it is.

    Args:
      url: The server, as --url has it.
      artifact: The export.
      signatures: Those of the export.
      planned: The calls to make.
      tolerance: How far numbers may be apart.

    Raises:
      UserError: If there is no server.
    """
    server = live_clients.to_url(url, artifact.model_name, signatures)
    planned = [one for one in planned if server.can_ask(one.call)]
    own = OwnMethods(server)
    of_methods = [
        one for one in planned if one.call.signature in live_clients.METHODS
    ]
    checks = []
    for client, asked in ((server, planned), (own, of_methods)):
        answers = client.ask([one.call for one in asked])
        checks += judging.judge(asked, answers, client, tolerance)
    return [
        *checks,
        _check_signatures(server, signatures),
        _check_state(server, artifact.version),
    ]


def _check_signatures(
    server: LiveServer, signatures: Mapping[str, Signature]
) -> Check:
    name = f"metadata by {server.name}"
    try:
        found = server.signatures()
    except RefusedError as error:
        return Check(name, "no answer", (str(error),))
    wrong = [
        one
        for one in sorted(found.keys() | signatures.keys())
        if found.get(one) != signatures.get(one)
    ]
    return Check(
        name,
        f"{len(found)} signatures",
        tuple(f"{one} is not that of the export" for one in wrong),
    )


def _check_state(server: LiveServer, version: int) -> Check:
    name = f"status by {server.name}"
    try:
        states = server.states()
    except RefusedError as error:
        return Check(name, "no answer", (str(error),))
    detail = ", ".join(
        f"version {number} {state}" for number, state in states.items()
    )
    faults = ()
    if states.get(version) != _AVAILABLE:
        faults = (f"version {version} is not {_AVAILABLE}",)
    return Check(name, detail or "no version", faults)
