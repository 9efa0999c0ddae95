"""What the methods share: the passes through a block, where block inputs stand, the loss, the gradients.

The rules of memory that every file in here keeps:

* An array lives as long as a name, a list or a graph that was not evaluated refers to it. So a name is set to None as soon
  as its last use is over, before the next large array is made; a function's end is often too late.
* An argument keeps its array alive in the caller. What a function is to be rid of before it ends, it is given in a list
  called `taken`, which it empties. What a forward leaves for a backward is an object whose fields the backward empties.
* An array is evaluated where that lets something else go: at the end of a stage, or of a piece of rows, tiles or features,
  and through device/evaluation.py alone. Never by habit. Nothing is evaluated in a function that MLX differentiates.
* What is made part by part is put together by device/gathered.py. Nothing else is written in place: a GPU may hold what it
  read a little longer.
* Only `block_inputs.py`, and what `Keep` names, hold arrays from the forward to the backward. Nothing is held across steps.
"""
