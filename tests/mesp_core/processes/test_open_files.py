"""Where few files may be open at once: it works, or a sentence says so."""

import os
import subprocess

import pytest

SMALL = ["--seq-len", "32", "--rank", "4"]


@pytest.fixture
def limited(command, tmp_path):
    """limited(number, *arguments) -> the finished process, in which so many files may be open at once.

    Its cache is empty, so that it asks mlx-lm for the tokenizer.
    """
    start, environment = command
    environment = environment | {"MESP_CACHE_DIR": str(tmp_path / "cache")}

    def run(number, *arguments):
        shell = ["bash", "-c", f'ulimit -n {number}; exec "$@"', "bash", *start, *arguments]
        options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 200}
        return subprocess.run(shell, capture_output=True, text=True, **options)

    return run


@pytest.mark.skipif(os.name != "posix", reason="needs a shell with ulimit")
class TestOpenFiles:
    @pytest.mark.parametrize("method", ["mesp", "autodiff"])
    def test_training(self, method, limited):
        """mlx-lm's import asks for 4096."""
        process = limited(48, "train", *SMALL, "--steps", "1", "--method", method, "--out", "out")
        assert process.returncode == 0, process.stderr

    def test_check(self, limited):
        process = limited(48, "check", *SMALL, "--methods", "mesp")
        assert process.returncode == 0 and "ok" in process.stdout, process.stderr

    @pytest.mark.parametrize("number", [7, 10, 13])
    def test_too_few(self, number, limited):
        process = limited(number, "train", *SMALL, "--steps", "1", "--out", "out")
        assert process.returncode == 1
        assert "unexpected" not in process.stderr and len(process.stderr.splitlines()[-1]) < 400
        assert "ulimit -n 256" in process.stderr or "Too many open files" in process.stderr
