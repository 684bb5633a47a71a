"""Operations on a whole root that write: copying its versions to another one."""

from holdfast.admin.copy import Copied, Copying, CopyPlan, plan_copy

__all__ = ["Copied", "Copying", "CopyPlan", "plan_copy"]
