"""Streams that outlast whoever reads them."""

import errno
import io
import os
import subprocess
import sys

import pytest

from mesp_core.commands.output import LastingStream, lasting_output


class Failing(io.StringIO):
    """A stream that fails as it is told to, and counts how often it was tried."""

    def __init__(self, error):
        super().__init__()
        self.error, self.tries = error, 0

    def write(self, text):
        self.tries += 1
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize(
    "error", [BrokenPipeError(errno.EPIPE, "left"), OSError(errno.EIO, "hung up"), ValueError("closed")], ids=type
)
def test_a_failure_is_kept_and_nothing_more_is_tried(error):
    failing = Failing(error)
    stream = LastingStream(failing)
    assert stream.write("one") == 3 and stream.lost is error
    failing.error = None
    assert stream.write("two") == 3
    stream.flush()
    assert stream.lost is error and failing.tries == 1 and failing.getvalue() == ""


def test_a_write_in_the_middle_of_another_is_left_out_and_the_next_is_not():
    """As a signal's handler makes it."""
    failing = Failing(RuntimeError("reentrant call"))
    stream = LastingStream(failing)
    stream.write("lost")
    failing.error = None
    stream.write("kept")
    assert stream.lost is None and failing.getvalue() == "kept"


def test_all_else_is_the_streams_own(tmp_path):
    with (tmp_path / "file").open("w", encoding="utf-8") as file:
        stream = LastingStream(file)
        assert stream.encoding == "utf-8" and not stream.isatty() and stream.fileno() == file.fileno()
        print("text", file=stream, flush=True)
    assert (tmp_path / "file").read_text() == "text\n"


def test_what_a_broken_pipe_still_holds_is_not_written_when_it_is_closed():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        stream = LastingStream(file)
        stream.write("held back")
        stream.flush()
        assert isinstance(stream.lost, BrokenPipeError)
    # and closing it raised nothing


def test_the_streams_of_before_are_back_after_the_block(capsys):
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), lasting_output() as (out, err):
        assert (sys.stdout, sys.stderr) == (out, err)
        print("out")
        print("err", file=sys.stderr)
        raise KeyError
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("out\n", "err\n")


def run(code, redirections=""):
    command = f'exec "$0" -c "$1" {redirections}'
    program = f"import os, sys\nfrom mesp_core.commands.output import lasting_output\n{code}"
    return subprocess.run(
        ["bash", "-c", command, sys.executable, program],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_missing_get_no_file_of_ours(redirections, tmp_path):
    file = tmp_path / "file"
    code = (
        "with lasting_output():\n"
        f"    file = open({str(file)!r}, 'w')\n"
        "    assert file.fileno() > 2\n"
        "    print('out', flush=True); print('err', file=sys.stderr, flush=True); assert sys.stdin.read() == ''\n"
        "    os.system('echo from a child; echo from a child >&2')\n"
        "sys.exit(5)\n"
    )
    finished = run(code, f"{redirections} </dev/null" if "<&-" not in redirections else redirections)
    assert finished.returncode == 5, finished.stderr
    assert file.read_text() == ""
    assert finished.stderr == ("" if "2>&-" in redirections else "err\nfrom a child\n")
    assert finished.stdout == ("" if " >&-" in f" {redirections}" else "out\nfrom a child\n")


def test_a_name_that_is_no_text_can_be_printed():
    finished = run("with lasting_output():\n    print('n\\udcff \\u00e4', flush=True)\n")
    assert finished.returncode == 0 and finished.stdout == "n\\udcff \\xe4\n"
