"""All fields, from top to bottom. Knows how they lie, not whether they are right."""

from PySide6.QtCore import QEvent, Signal
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QFormLayout, QHBoxLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from app.experiment.advanced import Advanced
from app.experiment.data_field import DataField
from app.experiment.fields import MARGIN, Field
from app.experiment.forms import add_rows, make_fields
from app.experiment.method_boxes import MethodBoxes
from app.experiment.model_field import ModelField
from app.experiment.preset_box import UNTOUCHED, PresetBox
from app.widgets.fold import Fold
from app.widgets.theme import mixed
from mesp_core.settings.run_config import RunConfig


class Page(QWidget):
    """`fields`: by RunConfig's names, in their order on the screen; `changed`: a person or a preset changed any."""

    changed = Signal()

    def __init__(self, model: ModelField, data: DataField) -> None:
        super().__init__()
        self.model, self.data = model, data
        self.preset = PresetBox()
        self.methods = MethodBoxes()
        basic = make_fields("basic")
        self.advanced = Advanced()
        self.fold = Fold("advanced", "Advanced", self.advanced)
        self.fields: dict[str, Field] = {field.name: field for field in (model, data, *basic)} | self.advanced.fields
        self._preset_label = QLabel("Preset")
        self._preset_label.setBuddy(self.preset)
        methods_label = QLabel("Methods")
        methods_label.setBuddy(self.methods)
        self._headings = [model.label, data.label, methods_label]
        for heading in self._headings:
            font = heading.font()
            font.setBold(True)
            heading.setFont(font)

        layout = QVBoxLayout(self)
        top, form = QFormLayout(), QFormLayout()
        add_rows(top, [])
        preset_row = QHBoxLayout()
        preset_row.setContentsMargins(*[MARGIN] * 4)
        preset_row.addWidget(self.preset)
        top.addRow(self._preset_label, preset_row)
        layout.addLayout(top)
        for heading, widget in zip(self._headings, (model, data, self.methods), strict=True):
            layout.addSpacing(layout.spacing())
            layout.addWidget(heading)
            layout.addWidget(widget)
        layout.addSpacing(layout.spacing())
        add_rows(form, basic)
        layout.addLayout(form)
        layout.addWidget(self.fold)
        layout.addStretch()
        self._align_labels()
        self._keep_readable()
        for line in self.findChildren(QLineEdit):  # or a file dropped there would be typed; the window selects it
            line.setAcceptDrops(False)
        self._setting = False
        self.set_config(RunConfig(), but=UNTOUCHED)  # those begin as they are
        self.preset.picked.connect(lambda config: self.set_config(config, but=UNTOUCHED))
        for source in (*self.fields.values(), self.methods, self.advanced.further):
            source.changed.connect(self._tell)
        self.advanced.interleave.toggled.connect(self._tell)

    def values(self) -> dict:
        """RunConfig's fields but `method`, as they stand there: what is no number is text."""
        return {name: field.value() for name, field in self.fields.items()}

    def set_config(self, config: RunConfig, but: tuple[str, ...] = ()) -> None:
        """Set every field but these; `changed` is told once."""
        wanted = config.to_dict()
        self._setting = True
        for name, field in self.fields.items():
            if name not in but:
                field.set_value(wanted[name])
        self._setting = False
        self._tell()

    def set_methods(self, methods: tuple[str, ...]) -> None:
        """Tick those that have a box, type the others."""
        self._setting = True
        self.methods.set_value(methods)
        self.advanced.further.set_value([method for method in methods if method not in self.methods.value()])
        self._setting = False
        self._tell()

    def changeEvent(self, event: QEvent) -> None:
        """Labels have the size of the font."""
        super().changeEvent(event)
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._align_labels()
        elif event.type() == QEvent.Type.PaletteChange:
            self._keep_readable()

    def _tell(self) -> None:
        if not self._setting:
            self.preset.show_values(self.values())
            self.changed.emit()

    def _keep_readable(self) -> None:
        """While a run goes on all is disabled, but it is what is running: platforms make that too faint to read."""
        own = self.palette()
        before = QPalette(own)
        for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
            text, ground = (own.color(QPalette.ColorGroup.Active, r) for r in (role, QPalette.ColorRole.Window))
            own.setColor(QPalette.ColorGroup.Disabled, role, mixed(text, ground, 0.6))
        if own != before:  # setting it comes back here
            self.setPalette(own)

    def _align_labels(self) -> None:
        """One column of labels over all forms."""
        rows = [field.label for field in (*self.fields.values(), self.advanced.further)]
        labels = [self._preset_label, *(label for label in rows if label not in self._headings)]
        widest = max(label.fontMetrics().horizontalAdvance(label.text()) for label in labels)
        for label in labels:
            label.setMinimumWidth(widest + 2)
