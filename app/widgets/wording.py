"""Numbers in a person's words. No Qt."""


def counted(number: int, what: str) -> str:
    """`1 sample`, `1,110 samples`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time span: `40 s`, `3 min 5 s`, `2 h 10 min`."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
