"""The child side of a run: one method, one process. Reads a job on stdin, says events on stdout, obeys `stop` and `step`.

    python -m mesp_core.training.worker

Imports MLX and little else; mlx_lm only for `autodiff`.
"""

import signal
import sys

from mesp_core.processes.child_side import leave, only_for_replies
from mesp_core.processes.error_line import to_values
from mesp_core.processes.interruption import on_signals
from mesp_core.runs import events
from mesp_core.runs.job import Job
from mesp_core.training.channel import Channel


def main() -> int:
    """Run the job on stdin; returns the exit code."""
    out = only_for_replies()
    job = Job.from_json(sys.stdin.readline())
    channel = Channel(out, sys.stdin, job.config.method)
    with on_signals(channel.stop_on_signal, also=[signal.SIGXCPU]):
        return _run_and_tell(job, channel)


def _run_and_tell(job: Job, channel: Channel) -> int:
    try:
        run(job, channel)
        return 0
    except Exception as error:
        told = to_values(error)
        channel.say(events.Error(channel.method, told["kind"], told["message"], told["exit_code"], told["details"]))
        return told["exit_code"]


def run(job: Job, channel: Channel) -> None:
    """Open, check, train, save; everything that is said goes through `channel`."""
    # Here, when the heart beats already: importing MLX may take long.
    from mesp_core.training.job_run import JobRun

    opened = JobRun(job, channel)
    opened.finish(opened.train())


if __name__ == "__main__":
    leave(main())
