"""The errors a person reads. Their text is the whole message: one or two sentences, no traceback."""


class MespError(Exception):
    """A run cannot go on. `kind` is a stable word for programs, `exit_code` what the command line returns."""

    kind = "failure"
    exit_code = 1


class UsageError(MespError):
    """Something that was asked for cannot be: a wrong value, file, field or combination. Exit code 2."""

    kind = "usage"
    exit_code = 2


class CheckpointError(MespError):
    """A model folder is incomplete, damaged or of an unsupported kind; names the file, the tensor and what was expected."""

    kind = "checkpoint"


class NotFiniteError(MespError):
    """A `what` (loss or gradient) of a step is NaN or infinite: `value`."""

    def __init__(self, message: str, what: str, value: float, step: int) -> None:
        super().__init__(message)
        self.what, self.value, self.step = what, value, step


class DataError(MespError):
    """A data file cannot be read as training samples; names the file and the line."""

    kind = "data"
