"""Names of the array types that the engine works with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.int64]
"""Hashes of keys, one for each row."""
Index = npt.NDArray[np.int64]
"""Positions of rows in a table."""
Mask = npt.NDArray[np.bool_]
"""Which rows of a table are selected."""
