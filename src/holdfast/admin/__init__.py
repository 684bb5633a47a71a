"""Operations on a whole root that write: copying its versions to another, trying its storage."""

from holdfast.admin.copy import CopyJob, CopyPlan, CopyResult, plan_copy

__all__ = ["CopyResult", "CopyJob", "CopyPlan", "plan_copy"]
