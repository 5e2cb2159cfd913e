"""Pages of errors of pipelines and their schedules."""

from irc.error_pages.page import ErrorPage

PAGES = (
    ErrorPage(
        code="pipeline-memory",
        title="a stage does not fit into the memory of its ranks",
        exit_code=4,
        what="Weights, what the schedule keeps of its micro-batches in flight, and what functions "
        "work in are more than a device has.",
        why="Every value that one function hands to another has a place for each micro-batch in "
        "flight. The message names the smallest budget that works, and how many may be in flight.",
        example='irc.compile_step(model, mesh="pipe=4", schedule="gpipe", memory_bytes=1 << 20)',
        fix="raise the budget, choose a schedule that keeps fewer micro-batches in flight (1f1b, "
        "v-half), smaller micro-batches, or more ranks",
    ),
    ErrorPage(
        code="pipeline-stages",
        title="a model cannot be cut into such stages",
        exit_code=2,
        what="There are more stages than layers to share among them, or stages that are named do "
        "not fit the model, or constraints on them (`stage l.0 = 1`) each other.",
        why="A stage computes one or more ops or blocks, in the order of the model.",
        example='irc.compile_step(model, mesh="pipe=4", stages="l.0; l.1")',
        fix='irc.compile_step(model, mesh="pipe=2", stages="l.0; l.1")',
    ),
    ErrorPage(
        code="pipeline-unsupported",
        title="a step cannot be a pipeline",
        exit_code=3,
        what="The model or the schedule does what stages on several micro-batches cannot.",
        why="Stages work on different micro-batches at a time: none may read what another "
        "writes, and a plan knows one path through the model.",
        example='irc.compile_step(model, mesh="pipe=2", schedule="skip")',
        fix='irc.compile_step(model, mesh="pipe=2", schedule="1f1b")',
    ),
    ErrorPage(
        code="schedule-deadlock",
        title="ranks of a schedule wait for each other",
        exit_code=2,
        what="In the order of the schedule, some ranks wait for each other, and none goes on.",
        why="A rank runs its actions one after the other, each when what it reads has arrived.",
        example="rank 0: 0B0 0F0",
        fix="rank 0: 0F0 0B0   (irc schedule show FILE checks it)",
    ),
    ErrorPage(
        code="schedule-incomplete",
        title="a schedule leaves something out, or does it twice",
        exit_code=2,
        what="A stage of a micro-batch lacks its F, B, I or W, has one twice, or is on two ranks.",
        why="A step computes each stage of each micro-batch once, forward and backward.",
        example="rank 0: 0F0 0F1 0B0",
        fix="rank 0: 0F0 0F1 0B0 0B1",
    ),
    ErrorPage(
        code="schedule-memory",
        title="no schedule holds so few activations",
        exit_code=4,
        what="Every order of the step's actions holds more micro-batches than there is room for.",
        why="Activations live from a micro-batch's forward to its backward.",
        example="irc schedule search --ranks 8 --micro-batches 16 --memory 0.5",
        fix="irc schedule search --ranks 8 --micro-batches 16 --memory 8",
    ),
    ErrorPage(
        code="schedule-order",
        title="two ranks disagree about the order of their messages",
        exit_code=2,
        what="A rank takes the messages of a channel in another order than they are sent.",
        why="A channel between two stages delivers in the order of its sends.",
        example="rank 0: 0F0 0F1 ...   with   rank 1: 1F1 1F0 ...",
        fix="rank 1: 1F0 1F1 ...",
    ),
    ErrorPage(
        code="schedule-registers",
        title="a rank of a plan writes or reads a register at the wrong time",
        exit_code=2,
        what="A slot of a register would be written while what is in it is sent or stored, or read "
        "before it has what a function is to read.",
        why="Slots are few, and taken again as soon as what was in them has gone. A plan follows "
        "from its schedule, so that this is a fault of the program that made its tapes.",
        example="a tape of events that were written by hand",
        fix="tapes_of(schedule, wiring)",
    ),
    ErrorPage(
        code="schedule-search",
        title="the rules of a schedule come to no end",
        exit_code=4,
        what="A schedule that is made step by step stops before all micro-batches are through.",
        why="Its rules leave every rank waiting for another one.",
        example="irc schedule show skip:1 --ranks 3 --micro-batches 1",
        fix="irc schedule show 1f1b --ranks 3 --micro-batches 1",
    ),
    ErrorPage(
        code="schedule-size",
        title="a schedule does not exist in these sizes",
        exit_code=2,
        what="The schedule cannot have so many ranks, stages a rank or micro-batches.",
        why="Some schedules take micro-batches in groups, or need enough of them to fill the pipe.",
        example="irc schedule show interleaved:2 --ranks 4 --micro-batches 6",
        fix="irc schedule show interleaved:2 --ranks 4 --micro-batches 8",
    ),
    ErrorPage(
        code="schedule-slots",
        title="ranks of a schedule wait for each other's free slots",
        exit_code=2,
        what="With so few slots for what crosses functions, some ranks wait, and none goes on.",
        why="A function starts when there is a free slot for each value that it makes; a slot is"
        " free again when its last reader has ended.",
        example="irc schedule simulate gpipe --ranks 2 --micro-batches 4 --slots 2",
        fix="irc schedule simulate gpipe --ranks 2 --micro-batches 4 --slots 4",
    ),
    ErrorPage(
        code="schedule-syntax",
        title="a schedule cannot be read",
        exit_code=2,
        what="The text or table has something that is no action.",
        why="An action is a stage, a letter (F, B, I, W) and a micro-batch, as in torch's tables.",
        example="rank 0: F0 B0",
        fix="rank 0: 0F0 0B0",
    ),
    ErrorPage(
        code="schedule-unknown",
        title="no schedule has this name",
        exit_code=2,
        what="The name is neither a schedule of irc, nor one of a plug-in, nor a file.",
        why="The order of a step has to be known before it runs.",
        example="irc schedule show 1f1bb --ranks 4 --micro-batches 8",
        fix="irc schedule show 1f1b --ranks 4 --micro-batches 8   (irc schedule list names them)",
    ),
)
