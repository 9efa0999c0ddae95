"""A process whose memory a test takes and frees."""

import subprocess
import sys
import time

# Evaluates one line of Python after another and answers each, so that a test decides when memory is touched and freed.
CHILD = """
import mmap, sys

def touch(n):
    held = bytearray(n)
    for i in range(0, n, 4096):
        held[i] = 1
    return held

def map_file(path):
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[i] for i in range(0, len(mapped), 4096))
    return mapped

names = {"touch": touch, "map_file": map_file}
print("ready", flush=True)
for line in sys.stdin:
    exec(line, names)
    print("done", flush=True)
"""


class Child:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        assert self._process.stdout.readline() == "ready\n"

    def do(self, statement):
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def kill(self):
        self._process.kill()

    def end(self):
        self._process.kill()
        self._process.communicate()


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
