"""Tables of typed rows in a database that show the newest version of some state.

    view = open_view(ViewSpec("cassandra://localhost:9042/shop/totals", schema))

A `Follower` updates a view from version to version. Other services read it with their database's
own client while the state keeps changing.
"""

from holdfast.deprecation import moved_names
from holdfast.views.follower import Follower, ViewChange, ViewStep, open_view
from holdfast.views.view import ChangeCounts, View, ViewSchema, ViewSpec, is_unbounded

__all__ = [
    "ChangeCounts",
    "ViewChange",
    "Follower",
    "ViewStep",
    "View",
    "ViewSchema",
    "ViewSpec",
    "is_unbounded",
    "open_view",
]

__getattr__ = moved_names(__name__, {
    "Applied": "holdfast.views:ChangeCounts",
    "Change": "holdfast.views:ViewChange",
    "Step": "holdfast.views:ViewStep",
})  # fmt: skip
