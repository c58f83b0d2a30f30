"""The report of a verification: its checks and their faults."""

import dataclasses

from bert_tf.errors import UserError

_MAX_FAULTS_OF_CHECK = 3


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of an export.

    Attributes:
      name: The name of the check.
      detail: The result in words.
      faults: The faults, in sentences without periods.
      largest: The largest difference of numbers, or None.
    """

    name: str
    detail: str
    faults: tuple[str, ...] = ()
    largest: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All checks of an export.

    Attributes:
      directory: The path of the export.
      source: The path of the model.
      checks: The checks in their order.
      latencies: The median latency in milliseconds for each warm-up request of
        one row; empty if none was timed.
    """

    directory: str
    source: str
    checks: tuple[Check, ...]
    latencies: tuple[float, ...] = ()

    @property
    def faults(self) -> list[str]:
        """All faults, each with the name of its check."""
        return [
            f"{check.name}: {fault}"
            for check in self.checks
            for fault in check.faults
        ]

    def text(self) -> str:
        """Returns a line for each check, and one more for each fault."""
        width = max(len(check.name) for check in self.checks)
        lines = [f"{self.directory}, compared with {self.source}:"]
        for check in self.checks:
            verdict = "WRONG" if check.faults else "ok"
            lines.append(f"  {verdict:5}  {check.name:{width}}  {check.detail}")
            shown = check.faults[:_MAX_FAULTS_OF_CHECK]
            lines += [f"         {fault}." for fault in shown]
            more = len(check.faults) - len(shown)
            if more:
                lines.append(f"         And {more} more faults.")
        return "\n".join(lines) + "\n"

    def require_correct(self) -> None:
        """Raises a `UserError` of one sentence if there are faults."""
        faults = self.faults
        if faults:
            more = len(faults) - 1
            others = f" (and {more} more, see the report)" if more else ""
            raise UserError(
                f"The export in {self.directory} differs from {self.source}: "
                f"{faults[0]}{others}."
            )
