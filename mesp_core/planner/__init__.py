"""What a run will need and how long a step takes, from config.json and the headers of its safetensors files alone.

Loads no MLX and no weights.
"""

from mesp_core.planner.plans import BudgetTooSmall, Part, PhasePlan, Plan, in_words, plan, recorded_for, shapes_of

__all__ = ["BudgetTooSmall", "Part", "PhasePlan", "Plan", "in_words", "plan", "recorded_for", "shapes_of"]
