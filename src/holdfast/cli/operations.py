"""The commands that change a root: a plan is shown, confirmed and run."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.admin.plan import OperationPlan
from holdfast.cli.exits import Exit
from holdfast.cli.output import Output
from holdfast.reading import Progress

PlanMaker = Callable[[Progress], OperationPlan]


def operate(output: Output, title: str, make: PlanMaker, dry_run: bool, yes: bool) -> Exit:
    """Make a plan; show it with `dry_run`, else run it, unless the user says no."""
    with output.progress(title) as progress:
        plan = make(progress)
    if dry_run:
        output.plan(plan)
        return Exit.OK
    if (refused := plan.refusal()) is not None:
        raise refused
    if not yes and not output.confirm(plan):
        return Exit.INTERRUPTED
    with output.progress(title) as progress:
        result = plan.run(progress)
    output.done(result)
    return Exit.OK
