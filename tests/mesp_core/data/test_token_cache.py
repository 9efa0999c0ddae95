"""The cache of token sets: made once, found again, never wrong, and never in the way of what is not ours."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mesp_core.data import tokenise as module
from mesp_core.data.token_set import TokenSet
from mesp_core.data.tokenise import ABANDONED_S, MAX_ENTRIES, tokenise
from mesp_core.errors import MespError

TEXTS = [{"text": "hello world"}, {"text": "the quick brown fox jumps over the lazy dog"}]
OTHER_TEXTS = [{"text": "yes and no"}, {"text": "what is the answer? the answer is forty two"}]


def entries(cache):
    return sorted(path for path in (cache / "tokens").iterdir() if not path.name.startswith("."))


def leftovers(cache):
    return [path for path in (cache / "tokens").iterdir() if path.name.startswith(".")]


def damage_text(entry):
    (entry / "ids.npy").write_bytes(b"not an array")


def damage_bit(entry):
    content = bytearray((entry / "ids.npy").read_bytes())
    content[-3] ^= 64
    (entry / "ids.npy").write_bytes(content)


def damage_short(entry):
    content = (entry / "mask.npy").read_bytes()
    (entry / "mask.npy").write_bytes(content[:-1])


def damage_meta(entry):
    meta = json.loads((entry / "meta.json").read_text())
    del meta["rows"]
    (entry / "meta.json").write_text(json.dumps(meta))


def damage_missing(entry):
    (entry / "lines.npy").unlink()


def damage_offsets(entry):
    offsets = np.load(entry / "offsets.npy")
    np.save(entry / "offsets.npy", offsets.astype(np.float64))


def damage_to_file(entry):
    shutil.rmtree(entry)
    entry.write_text("a file")


@pytest.mark.parametrize(
    "damage",
    [damage_text, damage_bit, damage_short, damage_meta, damage_missing, damage_offsets, damage_to_file],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_entry_is_made_again(plain_model, write, cache, damage):
    data = write(TEXTS)
    good = tokenise(data, plain_model, seq_len=8, loss_on="all")
    expected = [good.sample(i)[0].tolist() for i in range(len(good))]
    damage(good.path)
    again = tokenise(data, plain_model, seq_len=8, loss_on="all")
    assert [again.sample(i)[0].tolist() for i in range(len(again))] == expected
    assert len(entries(cache)) == 1 and not leftovers(cache)


def test_a_cache_that_cannot_be_written_is_a_plain_sentence(plain_model, write, tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("MESP_CACHE_DIR", str(tmp_path / "a-file"))
    with pytest.raises(MespError, match=r"token cache .* cannot be written.*MESP_CACHE_DIR"):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")


def test_old_entries_and_abandoned_folders_go(plain_model, write, cache):
    store = cache / "tokens"
    for age in range(MAX_ENTRIES + 3):
        folder = store / f"{age:032x}"
        folder.mkdir(parents=True)
        os.utime(folder, (time.time() - 1000 - age,) * 2)
    for name, age in ((".new-dead", 3 * 24 * 3600), (".new-alive", 60)):
        (store / name).mkdir()
        os.utime(store / name, (time.time() - age,) * 2)
    made = tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")
    kept = {path.name for path in entries(cache)}
    assert kept == {made.path.name} | {f"{age:032x}" for age in range(MAX_ENTRIES - 1)}
    assert [path.name for path in leftovers(cache)] == [".new-alive"]


def test_what_was_just_made_or_used_is_kept(plain_model, write, cache):
    """Even among entries that seem newer, as a clock that was set back leaves them."""
    data = write(TEXTS)
    entry = tokenise(data, plain_model, seq_len=8, loss_on="all").path
    os.utime(entry, (1, 1))
    tokenise(data, plain_model, seq_len=8, loss_on="all")
    assert time.time() - entry.stat().st_mtime < 600
    for number in range(MAX_ENTRIES):
        folder = cache / "tokens" / f"{number:032x}"
        folder.mkdir()
        os.utime(folder, (time.time() + 1000,) * 2)
    made = tokenise(data, plain_model, seq_len=9, loss_on="all").path
    assert made in entries(cache) and len(entries(cache)) == MAX_ENTRIES


def test_two_processes_may_make_the_same_entry(plain_model, write, cache, monkeypatch):
    """Both children run to their end before either renames, which is the worst that can happen."""
    data = write(TEXTS)
    both_ready = threading.Barrier(2, timeout=60)
    ask = module.ask

    def ask_and_wait(*args, **options):
        reply = ask(*args, **options)
        both_ready.wait()
        return reply

    monkeypatch.setattr(module, "ask", ask_and_wait)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(tokenise(data, plain_model, seq_len=8, loss_on="all")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = results
    assert first.path == second.path == entries(cache)[0]
    assert first.ids.tolist() == second.ids.tolist()
    assert not leftovers(cache)


def test_separate_processes_at_once(plain_model, write, cache):
    data = write(TEXTS)
    script = (
        "import sys; from mesp_core.data.tokenise import tokenise\n"
        "print(len(tokenise(sys.argv[1], sys.argv[2], seq_len=8, loss_on='all')))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(data), str(plain_model)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert outputs[0] == outputs[1] and int(outputs[0]) > 0
    assert len(entries(cache)) == 1 and not leftovers(cache)


def test_what_is_not_ours_is_never_pruned(plain_model, write, cache):
    """MESP_CACHE_DIR may name a folder that has other things in it."""
    store, old = cache / "tokens", time.time() - 10 * ABANDONED_S
    for number in range(MAX_ENTRIES + 3):
        (store / f"mine-{number}").mkdir(parents=True)
    (store / ".git").mkdir()
    (store / "notes.txt").write_text("mine")
    for path in store.iterdir():
        os.utime(path, (old, old))
    before = set(store.iterdir())
    made = tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")
    assert set(store.iterdir()) == before | {made.path}


# What changes while the samples are made


def ids_of(tokens):
    return [tokens.sample(number)[0].tolist() for number in range(len(tokens))]


@pytest.fixture
def meanwhile(monkeypatch):
    """meanwhile(before=None, after=None): called once, before or after the child that tokenises next."""

    def arrange(before=None, after=None):
        real = module.ask

        def ask(*arguments, **options):
            monkeypatch.setattr(module, "ask", real)
            if before is not None:
                before()
            reply = real(*arguments, **options)
            if after is not None:
                after()
            return reply

        monkeypatch.setattr(module, "ask", ask)

    return arrange


@pytest.mark.parametrize("max_samples", [0, 1])
def test_a_data_file_replaced_after_it_was_hashed(plain_model, write, cache, meanwhile, no_child, max_samples):
    """The samples are those of the new file, and are kept as such: the old one's are made anew when it is back."""
    options = {"seq_len": 8, "loss_on": "all", "max_samples": max_samples}
    data = write(TEXTS)
    meanwhile(before=lambda: write(OTHER_TEXTS))
    replaced = tokenise(data, plain_model, **options)
    write(TEXTS)
    first = tokenise(data, plain_model, **options)
    write(OTHER_TEXTS)
    no_child()
    second = tokenise(data, plain_model, **options)
    assert ids_of(replaced) == ids_of(second) != ids_of(first)
    assert replaced.path == second.path != first.path and not leftovers(cache)


def test_a_data_file_that_grows_behind_what_was_read(plain_model, write, cache, meanwhile):
    data = write(TEXTS)
    whole = tokenise(data, plain_model, seq_len=8, loss_on="all", max_samples=1)
    meanwhile(before=lambda: write([*TEXTS, *OTHER_TEXTS]))
    write([*TEXTS, "{}"])  # another hash, so that it is read again
    grown = tokenise(data, plain_model, seq_len=8, loss_on="all", max_samples=1)
    assert ids_of(grown) == ids_of(whole) and grown.path != whole.path
    assert tokenise(data, plain_model, seq_len=8, loss_on="all", max_samples=1).path == grown.path


@pytest.mark.parametrize("when", ["before", "after"])
def test_model_files_replaced_meanwhile(plain_model, write, cache, meanwhile, when):
    """Whatever the child saw of them, nothing is kept under a name that may be wrong."""
    data, file = write(TEXTS), plain_model / "tokenizer_config.json"
    old, new = file.read_text(), json.dumps({"eos_token": "<|endoftext|>"})
    meanwhile(**{when: lambda: file.write_text(new)})
    made = tokenise(data, plain_model, seq_len=64, loss_on="all")
    assert {ids[-1] for ids in ids_of(made)} == {0}  # the new end-of-text token
    file.write_text(old)
    before = tokenise(data, plain_model, seq_len=64, loss_on="all")
    assert {ids[-1] for ids in ids_of(before)} == {2} and before.path != made.path
    assert len(entries(cache)) == 2 and not leftovers(cache)


def test_a_model_that_never_comes_to_rest_is_told(plain_model, write, cache, monkeypatch):
    real, file, count = module.ask, plain_model / "config.json", []

    def ask(*arguments, **options):
        count.append(1)
        file.write_text(json.dumps({"number": len(count)}))
        return real(*arguments, **options)

    monkeypatch.setattr(module, "ask", ask)
    with pytest.raises(MespError, match="is being written to"):
        tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")
    assert len(count) == 3 and not entries(cache) and not leftovers(cache)


# The cache is emptied while a run uses it


@pytest.mark.parametrize("what", ["all", "entry", "files", "nothing"])
def test_a_token_set_is_put_back(plain_model, write, cache, what):
    tokens = tokenise(write(TEXTS), plain_model, seq_len=8, loss_on="all")
    expected = ids_of(tokens)
    if what == "files":  # as `find -type f -delete` does
        for file in tokens.path.iterdir():
            file.unlink()
    elif what != "nothing":
        shutil.rmtree(cache if what == "all" else tokens.path)
    tokens.put_back()
    assert ids_of(TokenSet.open(tokens.path)) == expected
    assert entries(cache) == [tokens.path] and not leftovers(cache)
