"""A file is written whole or not at all."""

import pytest

from mesp_core.errors import MespError
from mesp_core.files.whole_file import write_whole


def test_texts_bytes_and_streams_one_after_the_other(tmp_path):
    file = tmp_path / "deep" / "file"
    write_whole(file, "ä\n", b"\x89PNG\r\n\x00\xff", (line for line in ("a\n", "b\r\n")))
    assert file.read_bytes() == b"\xc3\xa4\n\x89PNG\r\n\x00\xffa\nb\r\n"
    write_whole(file, b"new")
    assert file.read_bytes() == b"new" and list(file.parent.iterdir()) == [file]


def test_a_stream_that_fails_leaves_the_old_file(tmp_path):
    def stream():
        yield "half"
        raise KeyError

    file = tmp_path / "file"
    write_whole(file, "old")
    with pytest.raises(KeyError):
        write_whole(file, stream())
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MespError, match="cannot be written"):
        write_whole(tmp_path / "file" / "below", b"bytes")
