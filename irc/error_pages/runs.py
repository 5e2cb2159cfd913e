"""Pages of errors of runs on several processes, and of rehearsals of them."""

from irc.error_pages.page import ErrorPage

PAGES = (
    ErrorPage(
        code="rank-lost",
        title="a rank of the run is stopped, gone or silent",
        exit_code=1,
        what="One of the processes of a run does not go on; the message names it.",
        why="The others wait for it in their next collective, and would for ever.",
        example="kill -STOP PID   (of a rank; IRC_RANK_TIMEOUT seconds later the run ends)",
        fix="start the run again, once what the rank itself printed is mended",
    ),
    ErrorPage(
        code="ranks-differ",
        title="ranks of a run have different programs",
        exit_code=2,
        what="The model as captured, the options or the versions of irc differ between the ranks.",
        why="All ranks run what rank 0 compiles, so the model of another one would be left out.",
        example="torchrun --nproc_per_node=2 train.py   (which builds the model by its RANK)",
        fix="build the same model with the same options on every rank, from the same files",
    ),
    ErrorPage(
        code="rehearsal-layers",
        title="no layers can be left out of a rehearsal",
        exit_code=3,
        what="The model of the plan has no equal layers, or they hand on more than one value.",
        why="A layer is left out by giving on what goes into it, as a residual stream does.",
        example="irc run plan --comm fake --layers 2   (a ResNet: its blocks differ)",
        fix="irc run plan --comm fake",
    ),
    ErrorPage(
        code="rehearsal-rank",
        title="the plan has no such rank",
        exit_code=2,
        what="The rank that is to be rehearsed is none of the plan's mesh.",
        why="Each rank has its own stage and its own parts of the weights.",
        example="irc run plan --comm fake --rank 512   (of a mesh of 512 devices)",
        fix="irc run plan --comm fake --rank 511",
    ),
    ErrorPage(
        code="rehearsal-unsupported",
        title="the plan cannot be rehearsed so",
        exit_code=3,
        what="A rehearsal runs one rank of a plan of fixed sizes; with --layers the plan has to"
        " hold the program of its model, and equal micro-batches.",
        why="A smaller model is planned anew, from what the folder says of the whole one.",
        example="irc run plan --comm fake --layers 2   (a plan that was saved without its IR)",
        fix="irc run plan --comm fake   (or compile it again: irc compile keeps the IR)",
    ),
    ErrorPage(
        code="run-failed",
        title="a process of the run ended early",
        exit_code=2,
        what="One of the processes that run the plan ended without reporting an error of irc.",
        why="The others were stopped, because their collectives would wait for it for ever.",
        example="irc run plan   (a rank was killed because memory ran out)",
        fix="irc run plan   (on a machine with more memory, or after compiling for more ranks)",
    ),
    ErrorPage(
        code="world-size",
        title="the number of processes is not that of the plan",
        exit_code=2,
        what="A plan is made for a number of ranks, and another number was started.",
        why="Each rank runs its own part: with one too few, the others would wait for ever.",
        example="irc run plan --nproc 2   (compiled for data=2,tensor=2)",
        fix="irc run plan --nproc 4   (in a script: mesh='data=auto', which takes what there is)",
    ),
)
