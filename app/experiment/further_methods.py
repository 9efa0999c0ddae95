"""Methods with options, typed."""

from collections.abc import Iterable, Sequence

from PySide6.QtWidgets import QLineEdit

from app.experiment.fields import Field
from mesp_core.errors import UsageError
from mesp_core.methods.names import parse_methods


class FurtherMethods(Field):
    """Text of methods with commas between them; may be empty."""

    def __init__(self) -> None:
        line = QLineEdit(placeholderText="lean:budget=450MB")
        tooltip = "Methods with options, with commas between them, such as lean:budget=450MB, mesp:weights=resident."
        super().__init__("further_methods", "Further methods", tooltip, line)
        line.textChanged.connect(self.changed)

    def value(self) -> str:
        """The text."""
        return self.editor.text().strip()

    def set_value(self, methods: Iterable[str]) -> None:
        """Show these."""
        text = ", ".join(methods)
        if text != self.value():
            self.editor.setText(text)

    def parse(self, ticked: Sequence[str]) -> tuple[str, ...]:
        """`ticked` and these, none of them twice; () and a mark at the field if that cannot be."""
        try:
            own = parse_methods(self.value()) if self.value() else ()
            specs = parse_methods(",".join([*ticked, *(spec.key for spec in own)])) if ticked or own else ()
        except UsageError as error:
            self.set_error(str(error))
            return ()
        self.set_error("")
        return tuple(spec.key for spec in specs)
