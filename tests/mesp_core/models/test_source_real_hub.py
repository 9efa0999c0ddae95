"""Model sources with the real huggingface_hub: on a cache folder that the test fills, and on a hub it serves itself."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from mesp_core.errors import MespError
from mesp_core.models.source import ModelSource, list_cached_models, resolve

CHECKPOINT = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty Hugging Face cache; no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def add_to_cache(cache, repo_id, names=CHECKPOINT, kind="models", ref="main"):
    repo = cache / f"{kind}--{repo_id.replace('/', '--')}"
    commit = hashlib.sha1(repo_id.encode()).hexdigest()
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / ref).write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in names:
        (repo / "blobs" / name).write_text("{}")
        (snapshot / name).symlink_to(repo / "blobs" / name)
    return snapshot


def test_a_cache_folder_is_used_without_network(cache):
    snapshot = add_to_cache(cache, "org/name")
    assert resolve("org/name") == ModelSource("org/name", snapshot, "hub", None)


def test_offline_with_an_empty_or_incomplete_cache(cache):
    with pytest.raises(MespError, match="HF_HUB_OFFLINE"):
        resolve("org/name")
    add_to_cache(cache, "org/name", ["config.json"])
    with pytest.raises(MespError, match="safetensors"):
        resolve("org/name")


def test_cached_models_are_those_that_need_no_download(cache):
    assert list_cached_models() == []
    add_to_cache(cache, "org/zebra")
    add_to_cache(cache, "org/ant", ["config.json", "model.safetensors"])
    add_to_cache(cache, "org/pickled", ["config.json", "pytorch_model.bin"])
    add_to_cache(cache, "org/weights-only", ["model.safetensors"])
    add_to_cache(cache, "org/data", kind="datasets")
    add_to_cache(cache, "org/other-revision", ref="v2")
    add_to_cache(cache, "org/half", ["config.json", "model.safetensors"])
    (cache / "models--org--half" / "blobs" / "model.safetensors").unlink()
    assert list_cached_models() == ["org/ant", "org/zebra"]


COMMIT = "a" * 40
ON_THE_HUB = {
    "config.json": b"{}",
    "model.safetensors": b"w" * 100_000,
    "tokenizer.json": b"{}",
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.safetensors": b"another model",
}


class HubHandler(BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as one download needs."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        headers = {"X-Repo-Commit": COMMIT}
        if "/resolve/" in path:
            body = ON_THE_HUB[path.split(f"/resolve/{COMMIT}/")[1]]
            headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
        elif "/tree/" in path:
            body = json.dumps(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in ON_THE_HUB.items()
                ]
            ).encode()
        else:
            siblings = [{"rfilename": name} for name in ON_THE_HUB]
            body = json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def test_a_whole_download_from_a_hub_on_this_machine(tmp_path):
    code = """
from mesp_core.models.source import list_cached_models, resolve
reports = []
source = resolve("org/name", lambda *report: reports.append(report))
print(*sorted(path.name for path in source.path.iterdir()))
print(reports[0], reports[-1])
print(list_cached_models())
"""
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "*",
        }
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "config.json model.safetensors tokenizer.json",
        "('Looking up org/name', 0.0) ('Downloaded org/name', 1.0)",
        "['org/name']",
    ]
