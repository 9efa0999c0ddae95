"""Which chat template a run uses, where it is not the model's own."""

from mesp_core.errors import UsageError
from mesp_core.files.user_path import user_path

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NAMED = {"chatml": CHATML}
LARGEST = 1_000_000  # bytes


def chosen_template(choice: str) -> str | None:
    """The Jinja source that `RunConfig.chat_template` stands for: one of NAMED, or a file; None for "", the model's own.

    Raises:
        UsageError: the file cannot be read as text.
    """
    if not choice:
        return None
    if choice in NAMED:
        return NAMED[choice]
    path = user_path(choice)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f"chat_template: {path} has more than {LARGEST:,} bytes; name a Jinja template.")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"chat_template: {path} cannot be read ({reason}); name {', '.join(NAMED)} or a file with a Jinja template."
        ) from None
