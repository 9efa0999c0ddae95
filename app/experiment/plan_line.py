"""What the methods chosen will need, and whether this machine has it: predicted, while the fields are edited."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QTextCharFormat, QTextCursor, QTextOption
from PySide6.QtWidgets import QFrame, QSizePolicy, QStyle, QTextEdit

from app.experiment.fields import MARGIN
from app.threads.background import Latest, Report, sentence
from app.widgets.plain import plain_tooltip
from app.widgets.theme import level_color
from app.widgets.throttle import Throttle
from mesp_core.errors import UsageError
from mesp_core.machine.memory import MB, machine_memory
from mesp_core.models.checkpoint import Checkpoint
from mesp_core.planner import Plan, in_words, plan
from mesp_core.settings.run_config import RunConfig

EVERY_MS = 200  # a plan within a budget takes 10 to 130 ms, the others 1
MOST_LINES, FEWEST_LINES = 6, 3  # shown of a longer text where there is room, and in a low window; the rest is scrolled to
GB = 1024 * MB
WHAT = (
    "Predicted training memory: what a run adds to its worker's footprint, as in the Summary tab, if samples are as long as "
    "the sequence length. Below: the peak of MLX's allocator."
)


@dataclass(frozen=True)
class Wanted:
    """What to plan for. `together`: the methods are in memory at the same time."""

    checkpoint: Checkpoint
    config: RunConfig
    methods: tuple[str, ...]
    together: bool = False

    def plans(self, report: Report) -> tuple[Plan, ...]:
        """One a method."""
        found = []
        for method in self.methods:
            report("", 0.0)  # may raise: not wanted any more
            found.append(plan(self.config, self.checkpoint, method))
        return tuple(found)


class PlanLine(QTextEdit):
    """Text that can be selected; invisible while there is nothing to say. `memory_bytes`: the machine's, if not this one's.

    `problem`: why there cannot be a plan, "" if that is not known to be so.
    """

    changed = Signal()  # `problem` is another

    def __init__(self, memory_bytes: int | None = None) -> None:
        super().__init__(readOnly=True, undoRedoEnabled=False, tabChangesFocus=True, acceptDrops=False)
        self.setObjectName("plan_line")
        self.setAccessibleName("Predicted memory")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.viewport().setAutoFillBackground(False)
        self.document().setDocumentMargin(MARGIN)
        side = self.style().pixelMetric(QStyle.PixelMetric.PM_LayoutLeftMargin)  # as the fields have
        self.setViewportMargins(side, 0, side, 0)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.document().documentLayout().documentSizeChanged.connect(self.updateGeometry)
        self._memory = memory_bytes or machine_memory()[0]
        self._wanted: Wanted | None = None
        self._said: tuple[str, str] = ("", "")  # what is well, what is not
        self.problem = ""
        self._latest = Latest(self, may_hang=False)
        self._latest.done.connect(self._show_plans)
        self._latest.failed.connect(self._show_failure)
        self._start_soon = Throttle(self._start, EVERY_MS, self)
        self.setVisible(False)

    def want(self, wanted: Wanted | None) -> None:
        """Plan this, unless that was done; None: say nothing. The text of before stays until there is another."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self.problem = ""
        self._latest.cancel()
        if wanted is None:
            self._start_soon.cancel()
            self._say("", "")
        else:
            self._start_soon.request()

    def close_background(self) -> None:
        """End the thread."""
        self._start_soon.cancel()
        self._latest.close()

    def sizeHint(self) -> QSize:
        """As high as the text is at this width."""
        return self._height(MOST_LINES)

    def minimumSizeHint(self) -> QSize:
        """Any width will do."""
        return self._height(FEWEST_LINES)

    def changeEvent(self, event: QEvent) -> None:
        """New colours on a new ground, another height with a new font."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_said"):
            self._write()
        elif event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self.updateGeometry()

    def _height(self, most_lines: int) -> QSize:
        most = most_lines * self.fontMetrics().lineSpacing() + 2 * MARGIN
        return QSize(0, min(math.ceil(self.document().size().height()), most))

    def _start(self) -> None:
        if self._wanted is not None:
            self._latest.start(self._wanted.plans)

    def _show_plans(self, plans: tuple[Plan, ...]) -> None:
        self._say(*in_text(plans, self._wanted.together, self._memory))
        self.setToolTip(plain_tooltip("\n\n".join([WHAT, *map(_details, plans)])))

    def _show_failure(self, error: Exception) -> None:
        if isinstance(error, UsageError):  # a budget that is too small
            self.problem = str(error)
            self._say("", "")
            self.changed.emit()
        else:  # no reason not to run it
            self._say("", f"What it will need cannot be predicted: {sentence(error)}")

    def _say(self, well: str, ill: str) -> None:
        self.setToolTip("")
        if (well, ill) != self._said:
            self._said = (well, ill)
            self._write()
        self.setVisible(bool(well or ill))

    def _write(self) -> None:
        well, ill = self._said
        self.clear()
        cursor, form = QTextCursor(self.document()), QTextCharFormat()
        cursor.insertText(well + (" " if well and ill else ""), form)
        form.setForeground(level_color("bad"))
        cursor.insertText(ill, form)


def in_text(plans: Sequence[Plan], together: bool, memory: int) -> tuple[str, str]:
    """What fits into so many bytes of memory and what does not, in sentences; "" for what there is none of."""
    of = f" of {_size(round(memory / GB) * GB or memory)}"  # whole GB, as the device strip says
    fitting = [chosen for chosen in plans if chosen.fits(memory)]
    sentences = [f"{p.method} will not fit: {_size(p.training_memory)}{of}." for p in plans if p not in fitting]
    each = ", ".join(f"{chosen.method} {_size(chosen.training_memory)}" for chosen in fitting)
    if together and len(plans) > 1:
        everything = sum(chosen.training_memory for chosen in plans)
        if everything > memory:
            sentences.append(f"Interleaved, they will not fit together: {_size(everything)}{of}.")
            of = ""
        else:
            of = f", interleaved {_size(everything)}{of}"
    return f"Will need about: {each}{of}." if each else "", " ".join(sentences)


def _details(chosen: Plan) -> str:
    lines = [f"{chosen.method}: {_size(chosen.allocator_peak)}"]
    for phase in chosen.phases:
        largest = phase.largest
        lines.append(f"    {phase.name} {_size(phase.nbytes)}, of which {largest.name} {_size(largest.nbytes)}")
    if chosen.keep is not None:
        lines.append(f"    {in_words(chosen)}")
    return "\n".join(lines)


def _size(nbytes: int) -> str:
    """`0.4 MB`, `137 MB`, `1.57 GB`, `24 GB`; a line is not broken before the unit."""
    if nbytes < 1023.5 * MB:
        return f"{nbytes / MB:.{0 if nbytes >= 9.95 * MB else 1}f}\u00a0MB"
    return f"{nbytes / GB:{',.0f' if nbytes >= 99.5 * GB else '.3g'}}\u00a0GB"
