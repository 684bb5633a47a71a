"""Decisions of runs that once broke a promise, made small. Each is run by every `make test`.

A case is what the simulator printed for a failing seed. It says what happened at which question of
the run, so that a change of the code under test can turn it into another run: beside a case there
is a test of its own for the fault, wherever that is possible.
"""

from __future__ import annotations

CASES: list[dict[int, int]] = [
    # A version was given up, and the tick before it delivered again, without its rows.
    {243: 1},
    # Two drivers started on an empty checkpoint, and one was told that its state was gone.
    {0: 1, 10: 2, 24: 1, 40: 1, 45: 1, 47: 1},
    # A version was given up a second time, and its batch id came with other rows.
    {
        0: 3, 2: 3, 3: 1, 17: 3, 20: 2, 24: 1, 27: 2, 28: 1, 31: 1, 55: 1, 73: 3, 78: 2,
        122: 2, 128: 4, 130: 1, 172: 2, 178: 1, 214: 2, 250: 1, 251: 1, 256: 1, 320: 4, 342:
        1, 424: 2, 431: 1, 433: 2, 436: 2, 468: 4, 478: 1,
    },
    # A tick was delivered and built upon by the driver before, while a newcomer delivered it again.
    {
        0: 1, 4: 1, 6: 1, 10: 1, 12: 1, 14: 1, 18: 2, 19: 2, 20: 2, 25: 1, 26: 1, 27: 3, 48:
        1, 67: 1, 69: 1, 70: 2, 74: 1, 76: 2, 78: 2, 82: 1, 86: 2, 90: 2, 92: 1, 131: 1,
        133: 2, 134: 1, 136: 3, 139: 2, 145: 1, 186: 1, 254: 1, 278: 1, 340: 1, 389: 2, 391:
        1, 397: 1, 403: 2, 414: 2, 462: 1, 463: 1, 464: 1, 469: 1, 474: 1, 488: 1,
    },
]  # fmt: skip
