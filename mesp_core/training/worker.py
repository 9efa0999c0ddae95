"""The child side of a run: one method, one process. Reads a job on stdin, says events on stdout, obeys `stop` and `step`.

    python -m mesp_core.training.worker

Imports MLX and little else; mlx_lm only for `autodiff`.
"""

import os
import signal
import sys
import traceback

from mesp_core.errors import MespError
from mesp_core.processes.interruption import on_signals
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.training.channel import Channel


def main() -> int:
    """Run the job on stdin; returns the exit code."""
    # Whatever a library prints must not end up between the events.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    job = Job.from_json(sys.stdin.readline())
    channel = Channel(out, sys.stdin, job.config.method)
    with on_signals(channel.stop_on_signal, also=[signal.SIGXCPU]):
        return _run_and_tell(job, channel)


def _run_and_tell(job: Job, channel: Channel) -> int:
    method = job.config.method
    try:
        run(job, channel)
        return 0
    except MespError as error:
        channel.say(events.Error(method, error.kind, str(error), error.exit_code, traceback.format_exc()))
        return error.exit_code
    except Exception as error:
        message = f"Unexpected {type(error).__name__} in the worker: {error}"
        channel.say(events.Error(method, "internal", message, 1, traceback.format_exc()))
        return 1


def run(job: Job, channel: Channel) -> None:
    """Open, check, train, save; everything that is said goes through `channel`."""
    # Here, when the heart beats already: importing MLX may take long.
    from mesp_core.training.job_run import JobRun

    opened = JobRun(job, channel)
    opened.finish(opened.train())


if __name__ == "__main__":
    code = main()
    # Daemon threads may sit in a read or write; there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(code)
