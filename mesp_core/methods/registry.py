"""All methods there are, in the order in which they are shown. A new one is a file beside this one and a word here."""

from mesp_core.methods.autodiff import AUTODIFF
from mesp_core.methods.lean import LEAN
from mesp_core.methods.mebp import MEBP
from mesp_core.methods.mesp import MESP, MESP_STORE_H
from mesp_core.methods.record import Record

METHODS: dict[str, Record] = {record.name: record for record in (MEBP, MESP, MESP_STORE_H, LEAN, AUTODIFF)}

# What is compared where nobody has said what to compare: the paper's comparison.
COMPARED = (MEBP.name, MESP.name)
# What a judge is held against: every exact method but the judge's own.
CHECKED = tuple(name for name, record in METHODS.items() if record.exact and record.kind.blockwise)
# The rows of `mesp plan`.
PLANNED = tuple(":".join(filter(None, [name, v])) for name, record in METHODS.items() for v in ("", *record.variants))
