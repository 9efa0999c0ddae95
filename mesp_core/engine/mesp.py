"""MeSP (Park et al., arXiv 2602.13069): keep each block's input; re-run the block, hand-written backward.

`mesp` recomputes h = xA where the backward needs it, `mesp-store-h` keeps it from the re-run (the paper's table 5).
"""

from functools import partial

from mesp_core.engine import block as decoder_block

block_backward = partial(decoder_block.backward, keep_h=False)
block_backward_store_h = partial(decoder_block.backward, keep_h=True)
