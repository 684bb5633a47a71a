"""The commands that change a root, with their options. What they do is in `holdfast.admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.completion import offered_versions

if TYPE_CHECKING:
    from holdfast.reading import Progress

Changed = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A query's checkpoint (checkpointLocation) or its stateLocation, or a folder made by "
        "holdfast.open.",
        show_default=False,
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why, for the journal.", show_default=False),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing anything.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts; errors are JSON on stderr.")
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Spark's checkpoint, where the state is elsewhere.",
        show_default=False,
    ),
]
TagName = Annotated[str, typer.Argument(metavar="NAME", help="The tag.", show_default=False)]


def tag(
    root: Changed,
    name: TagName,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="VERSION|TAG",
            help="The version to tag.",
            show_default="newest",
            autocompletion=offered_versions,
        ),
    ] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Give a version a name: retention keeps it. Works beside a stream."""
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        return admin.tag(root, name, at, reason=reason)

    commands.run(json, lambda to: operations.operate(to, "tag", make, dry_run, yes))


def untag(
    root: Changed,
    name: TagName,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove a tag: retention may then remove the version. Works beside a stream."""
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        return admin.untag(root, name, reason=reason)

    commands.run(json, lambda to: operations.operate(to, "untag", make, dry_run, yes))


def rollback(
    root: Changed,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="VERSION|TAG|TIME|intact",
            help="The version to go back to: its number, its tag, the newest by a time in ISO "
            "8601, or the newest that can be read whole.",
            show_default=False,
            autocompletion=offered_versions,
        ),
    ],
    checkpoint: CheckpointOption = None,
    lose_input: Annotated[
        bool,
        typer.Option("--lose-input", help="Also where input of the undone batches is gone."),
    ] = False,
    unchecked_input: Annotated[
        bool,
        typer.Option(
            "--unchecked-input", help="Also where nobody can look whether the input is there."
        ),
    ] = False,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Take a stream or a store back to an earlier version, with its source offsets.

    Nothing is deleted: the earlier version becomes the newest again. Stop the stream first; one
    that still runs stops with Conflict.
    """
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        return admin.rollback(
            root,
            to,
            checkpoint=checkpoint,
            lose_input=lose_input,
            unchecked_input=unchecked_input,
            reason=reason,
            progress=progress,
        )

    commands.run(json, lambda to: operations.operate(to, "rollback", make, dry_run, yes))


def fork(
    root: Changed,
    new_checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="NEW_CHECKPOINT",
            help="The checkpoint of the fork, or the root of a forked store: an empty place, or "
            "one with the same fork unfinished.",
            show_default=False,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="VERSION|TAG",
            help="The version to fork.",
            show_default="newest",
            autocompletion=offered_versions,
        ),
    ] = None,
    state_location: Annotated[
        str | None,
        typer.Option(
            "--state-location",
            metavar="ROOT",
            help="Where the state of the fork goes.",
            show_default="NEW_CHECKPOINT/holdfast",
        ),
    ] = None,
    checkpoint: CheckpointOption = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make a query of its own out of a version, which continues beside the original.

    State, offsets and sources come along, without copying bytes where the storage allows it.

    To finish a fork that was interrupted, run the same command again.
    """
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        for place in (new_checkpoint, state_location):
            if place is not None:
                commands.check_lasting(place)
        return admin.fork(
            root,
            new_checkpoint,
            at,
            state_location=state_location,
            checkpoint=checkpoint,
            reason=reason,
        )

    commands.run(json, lambda to: operations.operate(to, "fork", make, dry_run, yes))


def repair(
    root: Changed,
    wanted: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="JSON",
            help='{"key": …, "value": {…}}, or an array of those: columns that are left out stay. '
            '"expires" says when a row expires. Several times for several keys.',
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="KEY",
            help="A key to remove: a cell, or a JSON array or object of its columns.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--delete-where",
            metavar="FILTER",
            help="Remove all keys that a filter finds, as that of scan --where.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="A file with key and value columns to set: .parquet, .jsonl or .csv.",
            show_default=False,
        ),
    ] = None,
    partials: Annotated[
        bool,
        typer.Option(
            "--partials",
            help="Set aggregates by all of their stored columns, as show --schema names them.",
        ),
    ] = False,
    deliver: Annotated[
        bool,
        typer.Option(
            "--deliver", help="Have the next start of the query send the rows to its sink."
        ),
    ] = False,
    operator: Annotated[
        int | None, typer.Option("--operator", help="The operator.", show_default=False)
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="The name of the store.", show_default=False)
    ] = None,
    checkpoint: CheckpointOption = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Set or remove keys of one store, as a new version. A running stream stops."""
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: object) -> admin.OperationPlan:
        return admin.repair(
            root,
            set=wanted or None,
            delete=[admin.KeyText(key) for key in delete or ()] or None,
            delete_where=where,
            rows=rows,
            partials=partials,
            deliver=deliver,
            operator=operator,
            store=store,
            reason=reason,
            checkpoint=checkpoint,
        )

    commands.run(json, lambda to: operations.operate(to, "repair", make, dry_run, yes))


def gc(
    root: Changed,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=2,
            help="How many versions stay.",
            show_default="as many as the writer keeps",
        ),
    ] = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove versions and files that no retained version needs. Works beside a stream.

    Versions with a tag stay, and the others for the writer's grace period.
    """
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        return admin.gc(root, keep=keep, reason=reason)

    commands.run(json, lambda to: operations.operate(to, "gc", make, dry_run, yes))


def compact(
    root: Changed,
    operator: Annotated[
        int | None, typer.Option("--operator", help="Only this operator.", show_default=False)
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="Only this store.", show_default=False)
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", help="Only this partition.", show_default=False)
    ] = None,
    request: Annotated[
        bool,
        typer.Option(
            "--request", help="Leave it to whoever writes the root: works beside a stream."
        ),
    ] = False,
    checkpoint: CheckpointOption = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Merge each partition into one segment, as one version with the same state.

    Stop the stream first; one that still runs stops with Conflict. With --request it merges by
    itself, at its next maintenance.
    """
    from holdfast import admin
    from holdfast.cli import commands, operations

    def make(progress: Progress) -> admin.OperationPlan:
        return admin.compact(
            root,
            operator=operator,
            store=store,
            partition=partition,
            request=request,
            checkpoint=checkpoint,
            reason=reason,
        )

    commands.run(json, lambda to: operations.operate(to, "compact", make, dry_run, yes))


COMMANDS = (tag, untag, rollback, fork, repair, compact, gc)
