"""The short-lived process that tokenises a data file: `python -m mesp_core.data.tokenise_child`.

The request holds the arguments of `make_token_set`; the reply is {"data_sha256": of the bytes the samples were made of}.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from mesp_core.data.encode import ROWS_AT_ONCE, Encoder
from mesp_core.data.read_once import opened
from mesp_core.data.rows import Row, read_rows
from mesp_core.data.token_set import TokenSetWriter
from mesp_core.errors import DataError, MespError
from mesp_core.processes.child_side import Request, Say, serve


def make_token_set(
    data: Path,
    model_dir: Path,
    folder: Path,
    *,
    seq_len: int,
    loss_on: str,
    max_samples: int,
    template: str | None = None,
    description: Path | None = None,
    source: Iterable[bytes] | None = None,
) -> None:
    """Write the samples of `data` to the existing, empty `folder`; at most `max_samples` of them unless that is 0.

    `source` gives the lines of `data` where somebody has opened it already.

    Raises:
        UsageError, DataError, CheckpointError: as `read_rows` and `Encoder`; DataError when no sample is left.
    """
    encoder = Encoder(model_dir, data, seq_len, loss_on, template, description)
    writer = TokenSetWriter(folder)
    rows, skipped, truncated, kind = 0, 0, 0, ""

    def counted() -> Iterator[Row]:
        nonlocal rows, kind
        for row in read_rows(data, source=source):
            rows, kind = rows + 1, row.kind
            yield row

    # Never read further than needed: with max_samples set, a problem beyond them is not this run's problem.
    at_once = min(ROWS_AT_ONCE, max_samples or ROWS_AT_ONCE)
    for sample in encoder.samples(counted(), at_once):
        truncated += sample.truncated
        if not sample.learnable:
            skipped += 1
            continue
        writer.add(sample.ids, sample.mask, sample.line)
        if len(writer) == max_samples:
            break
    if not len(writer):
        raise DataError(_nothing_left(data, rows, skipped, truncated, seq_len, loss_on))
    writer.close(kind=kind, rows=rows, skipped=skipped, truncated=truncated, warnings=encoder.warnings)


def _nothing_left(data: Path, rows: int, skipped: int, truncated: int, seq_len: int, loss_on: str) -> str:
    counts = f"{data} leaves no sample to learn from ({rows} rows read, {skipped} skipped)"
    if not rows:
        return f"{data} has no rows (0 read, 0 skipped): it is empty. Choose another data file."
    if loss_on == "completion" and truncated:
        return f"{counts}: the prompts are longer than seq_len {seq_len}: raise seq_len or use loss_on=all."
    if loss_on == "completion":
        return f"{counts}: no row has an assistant turn with text in it. Use loss_on=all or another data file."
    return f"{counts}: no row has two tokens, one to predict the other from. Choose another data file."


def _work(request: Request, say: Say) -> None:
    paths = {name: Path(request.pop(name)) for name in ("data", "model_dir", "folder", "description")}
    with opened(paths["data"]) as lines:
        try:
            make_token_set(**paths, **request, source=lines)
        except OSError as error:  # reading is guarded where it happens: this is the disk the ids are written to
            reason = error.strerror or error
            raise MespError(f"The tokenised data cannot be written to {paths['folder']}: {reason}.") from None
        say({"data_sha256": lines.sha256()})


if __name__ == "__main__":
    serve(_work)
