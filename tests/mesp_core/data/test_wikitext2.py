import json
import zipfile

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mesp_core.data import wikitext2
from mesp_core.data.rows import read_rows
from mesp_core.errors import MespError, UsageError

# 30 words a line: common ones, and one ("rare7") that the training text has only once.
LINE = " " + " ".join(["the", "word", "é", "@-@", ",", "."] * 5) + " \n"


def text_of(lines):
    return " \n = A Title = \n \n" + "".join(LINE.replace("word", f"rare{n}", 1) for n in range(lines))


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "archive.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(wikitext2.MEMBERS["train"], text_of(40) + " = A Title = \n" * 2)
        file.writestr(wikitext2.MEMBERS["valid"], text_of(8))
        file.writestr(wikitext2.MEMBERS["test"], text_of(30))
    return path


def test_passages_of_chat_rows(archive, tmp_path):
    out = tmp_path / "new" / "wikitext2.jsonl"
    assert wikitext2.build(out, fetch=lambda: archive) == 4  # 30 lines of 32 units and 3 of title: 225 to a passage
    rows = list(read_rows(out))
    assert len(rows) == 4 and all(row.kind == "chat" for row in rows)
    assert isinstance(json.loads(out.read_text(encoding="utf-8").splitlines()[0]), list)
    for row in rows:
        user, assistant = row.messages
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert 100 < len(user["content"].split()) <= 125 and 80 < len(assistant["content"].split()) <= 100
        assert "  " not in user["content"] and user["content"] == user["content"].strip()
    assert rows[0].messages[0]["content"].startswith("= A Title = \n \n the <unk> é @-@ , . the word")
    # Nothing lost between the halves and the passages.
    words = [word for row in rows for message in row.messages for word in message["content"].split()]
    expected = [w if "rare" not in w else "<unk>" for w in text_of(30).split()]
    assert words == expected[: len(words)]
    assert sorted(path.name for path in out.parent.iterdir()) == ["wikitext2.jsonl"]


def test_splits(archive, tmp_path):
    counts = {split: wikitext2.build(tmp_path / split, split, fetch=lambda: archive) for split in ("train", "valid")}
    assert counts == {"train": 5, "valid": 1}
    with pytest.raises(UsageError, match="train, valid, test"):
        wikitext2.build(tmp_path / "x", "dev", fetch=lambda: archive)


def test_offline_is_a_plain_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    out = tmp_path / "wikitext2.jsonl"
    out.write_text("old")
    for error, words in (
        (LocalEntryNotFoundError("long\nstory"), "hub cannot be reached. Check the network"),
        (OSError("disk full"), "cannot be downloaded .*: disk full"),
    ):

        def refuse(*args, error=error, **_kwargs):
            assert args == (wikitext2.REPO_ID, wikitext2.ARCHIVE)
            raise error

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
        with pytest.raises(MespError, match=words) as caught:
            wikitext2.build(out)
        assert "\n" not in str(caught.value)
    assert out.read_text() == "old" and {path.name for path in tmp_path.iterdir()} - {"cache"} == {out.name}


def test_the_downloaded_archive_is_used(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_args, **_kwargs: str(archive))
    assert wikitext2.build(tmp_path / "out.jsonl") == 4


def test_damaged_archive(archive, tmp_path):
    out = tmp_path / "out.jsonl"
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(MespError, match=r"archive\.zip is damaged.*delete it"):
        wikitext2.build(out, fetch=lambda: archive)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("something/else", "")
    with pytest.raises(MespError, match="is damaged"):
        wikitext2.build(out, fetch=lambda: archive)
    assert not out.exists()


def test_an_output_that_cannot_be_written(archive, tmp_path):
    with pytest.raises(MespError, match="cannot be written"):
        wikitext2.build(archive / "below-a-file.jsonl", fetch=lambda: archive)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(MespError, match="cannot be written"):
        wikitext2.build(folder, fetch=lambda: archive)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"archive.zip", "folder"}
