"""Pages of errors of training: checkpoints, states, optimisers, weights in parts."""

from irc.error_pages.page import ErrorPage

PAGES = (
    ErrorPage(
        code="checkpoint-corrupt",
        title="a checkpoint is damaged",
        exit_code=2,
        what="A file of the checkpoint is missing, torn, not to be read, or not what was written.",
        why="Training would go on from numbers that no step made.",
        example="step.load('run')   (after a disk that was full, or a copy that broke off)",
        fix="step.load('run/step-100')   (the checkpoint before it)",
    ),
    ErrorPage(
        code="checkpoint-failed",
        title="a checkpoint cannot be written",
        exit_code=1,
        what="A rank could not write its part: the disk is full, or the folder not to be written.",
        why="Part of a checkpoint is none; those before it are as they were.",
        example="step.save('/full/disk/run')",
        fix="step.save('/other/disk/run', keep=2)",
    ),
    ErrorPage(
        code="checkpoint-missing",
        title="there is no checkpoint",
        exit_code=2,
        what="The folder does not exist, or has no checkpoint that was written to its end.",
        why="Training would begin anew where it was meant to go on.",
        example="step.load('rnu')",
        fix="step.load('run')",
    ),
    ErrorPage(
        code="loss-unknown",
        title="it is not clear which result is the loss",
        exit_code=2,
        what="The program gives no result that is one real number, or several.",
        why="Gradients are those of one number; which of several to train on is your decision.",
        example="differentiate a model that returns logits of shape [2, 9, 97]",
        fix="return the loss, or name a function of the output and targets: loss=FUNCTION",
    ),
    ErrorPage(
        code="offload-storage",
        title="saved activations cannot be put on the disk",
        exit_code=2,
        what="The folder for what a step moves out of memory is missing, cannot be written, or has "
        "too little space; or a read or a write failed.",
        why="A rank sets the space of its places aside before its first step, in the folder that "
        "IRC_SCRATCH names, or in that for temporary files.",
        example="IRC_SCRATCH=/missing torchrun --nproc-per-node 2 train.py",
        fix="IRC_SCRATCH=/local/nvme torchrun --nproc-per-node 2 train.py",
    ),
    ErrorPage(
        code="offload-unsupported",
        title="a step has nothing that could be moved out of memory",
        exit_code=3,
        what="The step has no micro-batches, none of its values waits while others are computed, "
        "or the memory that they are to go to is where they are already.",
        why="What forward saves of a micro-batch can lie elsewhere while other micro-batches are "
        "computed. With one micro-batch at a time its backward follows at once.",
        example='irc.compile_step(model, offload="disk")',
        fix='irc.compile_step(model, micro_batches=8, schedule="gpipe", offload="disk")',
    ),
    ErrorPage(
        code="optimizer-failed",
        title="the optimiser's own step raised an error",
        exit_code=2,
        what="An optimiser that is not compiled ran after forward and backward, and its step() "
        "failed. It is called without a closure.",
        why="Its parameters may have moved in part: the run cannot go on from them. On several "
        "ranks further steps are refused until step.load(folder), or step.load_state_dict(state) "
        "of model and optimizer.",
        example="def step(self, closure=None): loss = closure()",
        fix="def step(self, closure=None): loss = None if closure is None else closure()",
    ),
    ErrorPage(
        code="ranks-diverged",
        title="ranks of a run wait for each other in different calls",
        exit_code=1,
        what="Each rank waits in a collective, not all in the same call; the message says where.",
        why="A collective ends when all of its ranks have come to it, which these never do.",
        example="if rank == 0: state = step.state_dict()   (the others go on to the next step)",
        fix="state = step.state_dict(everywhere=False)   (on every rank; rank 0 gets it)",
    ),
    ErrorPage(
        code="replicas-differ",
        title="ranks that hold the same part of a tensor have other values",
        exit_code=1,
        what="Copies of a parameter or a state on several ranks were compared, and differ.",
        why="Each rank goes on from its own copy, so that the run trains several models.",
        example="irc.compile_step(model, mesh='data=2', check_every=100)",
        fix="go on from the last checkpoint; a rank that differs again has a machine that errs",
    ),
    ErrorPage(
        code="state-mismatch",
        title="the saved state is of another training step",
        exit_code=2,
        what="A name, a shape or a kind of dtype in it is not one of this step's module and "
        "optimiser, or the folder has weights alone.",
        why="Training would go on from a mixture of two states.",
        example="irc.compile_step(model, optimizer='sgd').load_state_dict(state_of_adamw)",
        fix="irc.compile_step(model, optimizer='adamw').load_state_dict(state_of_adamw)",
    ),
    ErrorPage(
        code="weights-apart",
        title="a module was called whose weights the ranks of a step hold",
        exit_code=2,
        what="On a mesh the parameters of a module that irc.compile_step trains are on the meta "
        "device; something asked them for their values.",
        why="Each rank keeps its parts; no rank need have the memory of the whole.",
        example="step(x, y); model(x)",
        fix="step.evaluate(x), or step.materialize() and then model(x)",
    ),
    ErrorPage(
        code="weights-missing",
        title="a weight has no value",
        exit_code=2,
        what="A parameter or buffer is on the meta device, and nothing says what its value is.",
        why="Memory that nobody has written to holds any numbers.",
        example="with torch.device('meta'): model = Net()   (one layer has no reset_parameters)",
        fix="irc.compile_step(model, init=fill)   (fill(module) is called for each layer)",
    ),
)
