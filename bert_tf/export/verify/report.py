"""What was looked at of an export, and what is wrong with it."""

import dataclasses

from bert_tf.errors import UserError

_MAX_FAULTS_OF_CHECK = 3


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
      name: What it is.
      detail: What was found.
      faults: What is wrong, in sentences without their full stops.
      largest: The largest difference of numbers, or None.
    """

    name: str
    detail: str
    faults: tuple[str, ...] = ()
    largest: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """All that was looked at.

    Attributes:
      directory: The export.
      source: Whom it was compared with.
      checks: In the order of the work.
      latencies: How many milliseconds half of the timed calls took at most,
        for each warm-up request of one row; empty if none was timed.
    """

    directory: str
    source: str
    checks: tuple[Check, ...]
    latencies: tuple[float, ...] = ()

    @property
    def faults(self) -> list[str]:
        """All that is wrong, each with where."""
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

    def require_right(self) -> None:
        """Raises `UserError`, of one sentence, unless all is right."""
        faults = self.faults
        if faults:
            more = len(faults) - 1
            others = f" (and {more} more, see the report)" if more else ""
            raise UserError(
                f"The export in {self.directory} is not what {self.source} is: "
                f"{faults[0]}{others}."
            )
