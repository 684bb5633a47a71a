"""Operations on a whole root that write, each from a plan that is data and changes nothing."""

from holdfast.admin.clean_up import CleanUpPlan, gc
from holdfast.admin.compaction import CompactPlan, PartitionToMerge, compact
from holdfast.admin.copy import CopyJob, CopyPlan, CopyResult, plan_copy
from holdfast.admin.fork import ForkPlan, fork
from holdfast.admin.plan import OperationPlan, OperationResult
from holdfast.admin.repair import RepairedKey, RepairPlan, repair
from holdfast.admin.repair_input import KeyText
from holdfast.admin.rollback import rollback
from holdfast.admin.rollback_plan import RollbackPlan
from holdfast.admin.tags import TagPlan, tag, untag

__all__ = [
    "CleanUpPlan",
    "CompactPlan",
    "CopyJob",
    "CopyPlan",
    "CopyResult",
    "ForkPlan",
    "KeyText",
    "OperationPlan",
    "OperationResult",
    "PartitionToMerge",
    "RepairPlan",
    "RepairedKey",
    "RollbackPlan",
    "TagPlan",
    "compact",
    "fork",
    "gc",
    "plan_copy",
    "repair",
    "rollback",
    "tag",
    "untag",
]
