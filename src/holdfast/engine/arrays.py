"""Names for the arrays that the engine works with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]
"""Hashes of keys, one a row."""
Index = npt.NDArray[np.int64]
"""Places of rows in a table."""
Mask = npt.NDArray[np.bool_]
"""Which rows of a table are meant."""
