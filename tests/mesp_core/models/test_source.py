import errno
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from mesp_core.errors import MespError, UsageError
from mesp_core.files import bundled
from mesp_core.models.source import ModelSource, local, resolve

CHECKPOINT = ("config.json", "model.safetensors", "tokenizer.json")


def fill(folder, names=CHECKPOINT):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


class FakeHub:
    """Stands in for `snapshot_download`: what is in the cache, and what a download gives or raises."""

    def __init__(self):
        self.cached: Path | Exception = errors.LocalEntryNotFoundError("not cached")
        self.download = lambda tqdm_class: pytest.fail("nothing to download")
        self.calls = []

    def __call__(self, repo_id, *, local_files_only=False, tqdm_class=None, **options):
        self.calls.append(SimpleNamespace(repo_id=repo_id, local=local_files_only, **options))
        result = self.cached if local_files_only else self.download(tqdm_class)
        if isinstance(result, BaseException):
            raise result
        return str(result)


@pytest.fixture
def hub(monkeypatch):
    hub = FakeHub()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


# --- what needs no hub ---


def test_tiny(tmp_path, monkeypatch, hub):
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path)
    folder = fill(tmp_path / "_bundled" / "tiny")
    (tmp_path / "cwd" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    assert resolve("tiny") == ModelSource("tiny", folder, "tiny", None) == local("tiny")
    assert resolve("./tiny").path == tmp_path / "cwd" / "tiny"


def test_synthetic(tmp_path, monkeypatch, hub):
    reports = []

    def ensure(name, on_progress):
        on_progress("writing", 0.5)
        return tmp_path / name

    synthetic = ModuleType("mesp_core.models.synthetic")
    synthetic.ensure, synthetic.find = ensure, lambda name: None
    monkeypatch.setitem(sys.modules, "mesp_core.models.synthetic", synthetic)
    source = resolve("synthetic:qwen2.5-3b", lambda *report: reports.append(report))
    assert (source.name, source.path, source.kind) == ("synthetic:qwen2.5-3b", tmp_path / "qwen2.5-3b", "synthetic")
    assert "random weights" in source.warning and "meaningless" in source.warning
    assert reports == [("writing", 0.5)]
    assert local("synthetic:qwen2.5-3b") is None
    synthetic.find = lambda name: tmp_path / "found"
    assert local("synthetic:qwen2.5-3b") == resolve("synthetic:qwen2.5-3b", lambda *report: pytest.fail("it was there"))
    assert local("synthetic:qwen2.5-3b").path == tmp_path / "found"


def test_directories(tmp_path, monkeypatch, hub):
    folder = fill(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(folder), "org/name", "org/name/", "./org/name", "~/org/name", "org/../org/name"):
        assert resolve(name) == ModelSource(name, folder, "directory", None) == local(name)
    assert hub.calls == []


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("gpt2", "neither"),
        ("Tiny", "neither"),
        ("a--b/c", "neither"),
        ("a..b/c", "neither"),
        ("org/.name", "neither"),
        ("org/name.git", "neither"),
        ("org/na me", "neither"),
        ("org/" + "n" * 97, "neither"),
        ("https://huggingface.co/org/name", "web address"),
        ("/no/such/folder", "no folder /no/such/folder"),
        ("./missing", "no folder"),
        ("../missing", "no folder"),
        ("~/missing/folder", "no folder"),
        ("missing/", "no folder"),
        ("a/b/c", "no folder"),
        ("models\\qwen", "no folder"),
        ("qwen.gguf", "is a GGUF file"),
        ("org/model.safetensors", "looks like a file"),
        ("file", "is a file"),
    ],
)
def test_what_cannot_name_a_model_is_refused(tmp_path, monkeypatch, hub, model, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=says):
        local(model)
    with pytest.raises(UsageError, match=says) as error:
        resolve(model)
    assert model.strip() in str(error.value)
    assert says in ("is a file", "is a GGUF file") or all(
        word in str(error.value) for word in ("tiny", "synthetic:NAME", "folder", "org/name")
    )
    assert hub.calls == []


# --- the hub ---


@pytest.mark.parametrize("repo_id", ["mlx-community/Qwen2.5-0.5B-Instruct-4bit", "a/b", "my_org/a.b_c-d", "0/9"])
def test_hub_ids_found_in_the_cache_need_no_network(tmp_path, hub, repo_id):
    huggingface_hub.utils.validate_repo_id(repo_id)
    hub.cached = fill(tmp_path / "snapshot")
    assert resolve(repo_id) == ModelSource(repo_id, tmp_path / "snapshot", "hub", None)
    assert [(call.repo_id, call.local) for call in hub.calls] == [(repo_id, True)]
    assert local(repo_id) == ModelSource(repo_id, tmp_path / "snapshot", "hub", None)


def test_only_data_files_are_asked_for(tmp_path, hub):
    hub.download = lambda tqdm_class: fill(tmp_path / "snapshot")
    resolve("org/name")
    files = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "chat_template.jinja",
        "tokenizer.model",
        "modeling_qwen.py",
        "pytorch_model.bin",
        "model.pt",
        "sub/config.json",
        "onnx/model.safetensors",
    ]
    assert [call.local for call in hub.calls] == [True, False]
    for call in hub.calls:
        patterns = {"allow_patterns": call.allow_patterns, "ignore_patterns": call.ignore_patterns}
        assert list(huggingface_hub.utils.filter_repo_objects(files, **patterns)) == files[:6]


@pytest.mark.parametrize("names", [["config.json"], ["model.safetensors"], ["config.json", "model.safetensors"], []])
def test_an_incomplete_snapshot_in_the_cache_leads_to_the_download(tmp_path, hub, names):
    hub.cached = fill(tmp_path / "snapshot", names)
    assert local("org/name") is None
    hub.download = lambda tqdm_class: fill(tmp_path / "snapshot")
    assert resolve("org/name").path == tmp_path / "snapshot"
    assert [call.local for call in hub.calls] == [True, True, False]


def test_what_is_not_in_the_cache_is_not_local(hub):
    assert local("org/name") is None
    assert [call.local for call in hub.calls] == [True]


def test_a_missing_shard_leads_to_the_download(tmp_path, hub):
    hub.cached = fill(tmp_path / "snapshot", ["config.json", "tokenizer.json", "model-1.safetensors"])
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "snapshot" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "snapshot" / "model-2.safetensors").symlink_to(tmp_path / "removed")

    def download(tqdm_class):
        (tmp_path / "removed").touch()
        return tmp_path / "snapshot"

    hub.download = download
    resolve("org/name")
    assert [call.local for call in hub.calls] == [True, False]
    resolve("org/name")
    assert [call.local for call in hub.calls] == [True, False, True]


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": null}', '{"weight_map": []}', "{}"])
def test_a_damaged_index_is_left_to_whoever_opens_the_checkpoint(tmp_path, hub, text):
    hub.cached = fill(tmp_path / "snapshot")
    (tmp_path / "snapshot" / "model.safetensors.index.json").write_text(text)
    assert resolve("org/name").path == tmp_path / "snapshot"


def test_a_model_without_a_tokenizer_is_accepted(tmp_path, hub):
    hub.cached = fill(tmp_path / "snapshot", ["config.json", "model.safetensors"])
    hub.download = lambda tqdm_class: tmp_path / "snapshot"
    assert resolve("org/name").path == tmp_path / "snapshot"


@pytest.mark.parametrize(("names", "lack"), [([], "config.json"), (["config.json", "tokenizer.json"], "safetensors")])
def test_a_download_that_brings_no_checkpoint_is_an_error(tmp_path, hub, names, lack):
    hub.download = lambda tqdm_class: fill(tmp_path / "snapshot", names)
    with pytest.raises(MespError, match=f"'org/name' came without {lack}"):
        resolve("org/name")


# --- progress and cancelling ---


def bars_of(tqdm_class):
    """The bars `snapshot_download` makes: two that count bytes, one that counts files."""
    received = tqdm_class(desc="Downloading bytes", total=0, initial=0, unit="B", unit_scale=True)
    written = tqdm_class(desc="Reconstructing", total=0, initial=0, unit="B", unit_scale=True)
    tqdm_class(total=3, desc="Fetching 3 files").update(2)
    return received, written


def test_progress_counts_bytes_and_comes_from_the_calling_thread(tmp_path, hub, capsys):
    reports, threads = [], set()
    started, halfway = threading.Event(), threading.Event()

    def on_progress(message, fraction):
        reports.append((message, fraction))
        threads.add(threading.current_thread())
        started.set()
        if fraction == 0.5:
            halfway.set()

    def download(tqdm_class):
        started.wait(5)
        received, written = bars_of(tqdm_class)
        written.total = received.total = 60 * 2**20
        written.update(10 * 2**20)
        received.update(30 * 2**20)
        received.set_postfix_str("fast", refresh=False)
        received.refresh()
        assert halfway.wait(5)
        return fill(tmp_path / "snapshot")

    hub.download = download
    resolve("org/name", on_progress)
    assert reports[0] == ("Looking up org/name", 0.0)
    assert ("Downloading org/name: 30 of 60 MB", 0.5) in reports
    assert reports[-1] == ("Downloaded org/name", 1.0)
    assert threads == {threading.current_thread()}
    assert capsys.readouterr() == ("", "")


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("at", [0.0, 0.5])
def test_cancelling_does_not_wait_for_the_download_and_ends_it(hub, at):
    cancelled, ended = threading.Event(), threading.Event()

    def on_progress(message, fraction):
        if fraction == at:
            cancelled.set()
            raise Cancelled

    def download(tqdm_class):
        try:
            _, written = bars_of(tqdm_class)
            written.total = 100
            written.update(50)
            assert cancelled.wait(5)
            while True:
                written.update(0)
        finally:
            ended.set()

    hub.download = download
    with pytest.raises(Cancelled):
        resolve("org/name", on_progress)
    assert ended.wait(5)


def test_a_download_without_anyone_watching(tmp_path, hub):
    hub.download = lambda tqdm_class: fill(tmp_path / "snapshot")
    assert resolve("org/name").kind == "hub"


# --- what can go wrong ---


def http_error(kind, status):
    response = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind("the server's own words\nin several lines", response=response)


def offline(cause):
    error = errors.LocalEntryNotFoundError("a long explanation\nin several lines")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            offline(ConnectionError()),
            r"cannot reach the hub.*pass a local folder or a model that is already in the cache",
        ),
        (offline(errors.OfflineModeIsEnabled()), "HF_HUB_OFFLINE"),
        (offline(http_error(errors.HfHubHTTPError, 503)), "status 503"),
        (errors.LocalEntryNotFoundError("gone"), "cannot reach the hub"),
        (errors.HTTPError("proxy"), "cannot reach the hub"),
        (TimeoutError(), "cannot reach the hub"),
        (http_error(errors.RepositoryNotFoundError, 404), "neither a folder nor a hub model.*spelling"),
        (http_error(errors.GatedRepoError, 403), "gated.*hf auth login"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk is full"),
        (RuntimeError("Data processing error: No space left on device (os error 28)"), "disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written"),
        (RuntimeError("something new\nwith a long tail"), r"failed \(RuntimeError: something new\)"),
    ],
)
def test_failures_are_told_in_plain_sentences(hub, error, says):
    hub.download = lambda tqdm_class: error
    with pytest.raises(MespError, match=says) as caught:
        resolve("org/name")
    message = str(caught.value)
    assert "'org/name'" in message and "\n" not in message and message.endswith(".")
    assert caught.value.exit_code == 1
    assert caught.value.__cause__ is error


def test_importing_the_module_does_not_import_huggingface_hub():
    code = "import sys, mesp_core.models.source; print('huggingface_hub' in sys.modules, 'psutil' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "False False\n"
