"""Seeds and budgets of the random tests: printed, and replayed by environment variables."""

from __future__ import annotations

import os
import random


def seed_of(name: str) -> int:
    """`HOLDFAST_SEED`, or a fresh one; printed, so that a failure can be replayed."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"\n{name}: HOLDFAST_SEED={seed}")
    return seed


def budget(name: str, default: int) -> int:
    """How many examples: the environment variable of that name, or the default."""
    return int(os.environ.get(name) or default)
