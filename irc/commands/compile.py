"""`irc compile`: an ONNX file, a PyTorch module or a program as text in, a plan folder out."""

import argparse
from contextlib import nullcontext
from pathlib import Path

from irc.commands.byte_options import add_memory_option, bytes_option, in_words_of_options
from irc.commands.code_options import add_import_option
from irc.commands.progress import asked, progress
from irc.errors import IrcError
from irc.logs import PROGRESS

HELP = "compile an ONNX model or a PyTorch module into a plan"
ADAMW = "adamw"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc compile`."""
    parser.add_argument(
        "model",
        metavar="MODEL.onnx|NAME:FUNCTION|FILE.mlir",
        help="an ONNX file; or a function of a Python module (pkg.net:build) or file (net.py:build)"
        " that returns (module, example_args); or a program that --to has written",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR|FILE.mlir",
        help="the folder for the plan; of --to the file for the program (default: it is printed)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print what irc explain plan DIR --json says"
    )
    parser.add_argument(
        "--to",
        metavar="PHASE",
        default="",
        help="stop there, and write the program as text, its weights beside it: behind a pass"
        " (fuse; irc list passes), where a level of the IR ends (flow, flow+sbp, spmd, task), or at"
        " capture",
    )
    parser.add_argument(
        "--from",
        metavar="PHASE",
        dest="phase",
        default="",
        help="go on from there with FILE.mlir (default: where --to has stopped)",
    )
    add_import_option(parser, "ops of FILE.mlir")
    parser.add_argument("--mesh", metavar="AXES", help="the mesh, such as data=2,tensor=2")
    parser.add_argument(
        "--backend", metavar="NAME", default="cpu", help="what writes the kernels (default: cpu)"
    )
    parser.add_argument("--cluster", metavar="NAME|FILE", help="the machines the plan is for")
    add_memory_option(parser, "on a mesh what the cluster's have, less a margin; else none")
    parser.add_argument(
        "--size",
        metavar="NAME=N",
        action="append",
        default=[],
        help="a number for a size of the model, which else stays open where it can: by its name"
        " (batch=1), or by input and position (x.0=1); may be given again",
    )
    parser.add_argument(
        "--value",
        metavar="NAME=N",
        action="append",
        default=[],
        help="a number for an input of one element that is the same in every call (sr=16000): the"
        " plan is for it, and takes no such input; may be given again",
    )
    parser.add_argument(
        "--pass",
        metavar="NAME",
        dest="passes",
        action="append",
        default=[],
        help="run a plug-in's pass, where it says it goes, as in my-pass or 'my-pass{option=1}';"
        " no-order leaves out one of irc's own that is only faster; may be given again",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        help="rewrite rules, tried before irc's own; may be given again",
    )
    parser.add_argument(
        "--pins",
        metavar="TEXT|FILE",
        default="",
        help="constraints on placements, on uses of modules, stages and recompute, as in "
        "'*.weight = [tensor = S(0)]; recompute layers.{0-3} = full'",
    )
    parser.add_argument(
        "--native",
        metavar="NAMES|none",
        default="",
        help="kinds of processors that the plan holds machine code for (default: all that irc"
        " knows: x86-64-v3,x86-64-v4,x86-64-v4-dots,x86-64-v4-amx)",
    )
    _add_training_arguments(parser)
    parser.add_argument(
        "--sign-key", metavar="FILE", help="sign the plan with this key, as irc sign does"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a plan that is in the folder already"
    )


def _add_training_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--train",
        metavar="OPTIMIZER",
        nargs="?",
        const=ADAMW,
        help="plan a step of training with adamw (the default), sgd, lion, adafactor or another "
        "kind that irc.compile_step takes",
    )
    parser.add_argument("--lr", metavar="X", type=float, help="the learning rate (default: 0.001)")
    parser.add_argument(
        "--loss",
        metavar="RESULT|NAME:FUNCTION",
        help="the result to train on, or a function loss(output, *targets) of the module's output"
        " and the last example arguments",
    )
    parser.add_argument(
        "--frozen", metavar="GLOBS", default="", help="parameters that stay as they are"
    )
    parser.add_argument(
        "--micro-batches",
        "--accumulate",
        metavar="N",
        type=int,
        help="micro-batches of a step (default: one, or the ranks along pipe)",
    )
    parser.add_argument(
        "--schedule",
        metavar="NAME|FILE",
        help="who works on which micro-batch when, on a mesh with an axis pipe: 1f1b (the default),"
        " interleaved:2, zb-v, ... (irc schedule list), torch's .csv, a file of "
        "irc's notation, or search (search:2 with two stages a rank): the order that takes the "
        "least time, by what this plan's own stages and links take, within the devices' memory",
    )
    parser.add_argument(
        "--layout",
        metavar="NAME",
        help="what the axes of the mesh are for: ddp, fsdp, tp, tp+sp, fsdp+tp, ...; axes called"
        " tensor, tp or model divide matrices, the others samples (default: what is fastest)",
    )
    parser.add_argument(
        "--stages",
        metavar="TEXT",
        help='where stages begin, by names of parameters, as in "tok, l.0-l.3; l.4-l.9, head"'
        " (default: the cut with the fastest slowest stage)",
    )
    parser.add_argument(
        "--recompute",
        metavar="POLICY",
        default="none",
        help="what backward computes again: none, cheap, selective, every-second-matmul, "
        "full, or globs",
    )
    parser.add_argument(
        "--precision",
        metavar="DTYPE|NAME=DTYPE,..",
        help="compute in bfloat16 or float16 (whose loss is scaled); or say what is in which dtype,"
        " as in parameters=bfloat16,masters=float32,reduce=float32 (also compute; reduce is of the"
        " sums of gradients over ranks)",
    )
    parser.add_argument(
        "--offload",
        metavar="disk|host",
        help="where what a step saves of a micro-batch lies while others are computed: a file of"
        " each rank in the folder IRC_SCRATCH, or the memory of a GPU's host (default: on the"
        " device)",
    )
    parser.add_argument(
        "--stored-bytes",
        metavar="BYTES",
        help="the most that a device may hold all the time, as 20GB: parameters and states",
    )


def run(args: argparse.Namespace) -> int:
    """Compile, and print a summary of the plan."""
    key, signer = None, ""
    _check_places(args)
    if args.sign_key is not None:
        from irc.plan.signature import sign, signing_key

        key = signing_key(Path(args.sign_key))  # before the long work
        summary = _compiled(args)
        signer, _ = sign(Path(args.output), key)
    else:
        summary = _compiled(args)
    if args.json and not args.to:
        from irc.report.any_plan import explain_folder

        print(explain_folder(args.output, as_json=True))
        return 0
    print(summary)
    if signer:
        print(f"{'signed by':<12}{signer}")
    return 0


def _check_places(args: argparse.Namespace) -> None:
    """Refuse what is written to nowhere, and options that have nothing to be of.

    Raises:
        IrcError: ``option-value``.
    """
    if args.output is None and not args.to:
        raise IrcError(
            "option-value",
            "irc compile writes a plan, and no folder is named",
            help="-o DIR, or --to PHASE, which prints the program",
        )
    for option in ("json", "sign_key"):
        if args.to and getattr(args, option):
            raise IrcError(
                "option-value",
                f"--{option.replace('_', '-')} is of a plan, and --to {args.to} stops before that",
                help="leave it out here, and give it where you go on --from the phase",
            )
    if not is_program(args.model):
        for option in ("phase", "imports"):
            if getattr(args, option):
                raise IrcError(
                    "option-value",
                    f"--{'from' if option == 'phase' else 'import'} is of programs in text form,"
                    f" and '{args.model}' is none",
                    help="irc compile MODEL --to PHASE -o FILE.mlir writes one",
                )


def is_program(model: str) -> bool:
    """True for a file with a program in text form."""
    return Path(model).suffix == ".mlir"


def _compiled(args: argparse.Namespace) -> str:
    # A budget that is written beside a program is called there as in Python.
    is_beside = is_program(args.model) and args.memory is None
    with progress(asked(args)), nullcontext() if is_beside else in_words_of_options():
        PROGRESS.info("capturing %s", args.model)
        if is_program(args.model):
            return _compile_program(args)
        return _compile_module(args) if is_named_object(args.model) else _compile_file(args)


def is_named_object(text: str) -> bool:
    """True for ``NAME:FUNCTION``, where no file is called so.

    >>> is_named_object("nets/gpt.py:build"), is_named_object("model.onnx")
    (True, False)
    """
    name, _, function = text.rpartition(":")
    return bool(name) and function.isidentifier() and not Path(text).exists()


def refuse_bare_file(model: str) -> None:
    """Refuse a Python file of which no function is named.

    Raises:
        IrcError: ``option-value``.
    """
    if Path(model).suffix == ".py":
        raise IrcError(
            "option-value",
            f"'{model}' is a Python file: which of its functions makes the module is not said",
            help=f"write {model}:build, where build() returns (module, example_args)",
        )


def _compile_program(args: argparse.Namespace) -> str:
    from irc.constraints.steps import called_pins
    from irc.from_files import compile_text
    from irc.frontends.torch.named import import_all
    from irc.pipeline import Options
    from irc.sharding.mesh import parse_mesh

    _refuse_of_modules(args, "programs in text form")
    if args.size or args.value:
        raise IrcError("option-value", "--size and --value are of ONNX files")
    asked = ("mesh", "cluster", "memory", "passes", "rules", "pins")
    is_asked = args.backend != "cpu" or any(getattr(args, name) for name in asked)
    import_all(args.imports)
    options = Options(
        mesh=parse_mesh(args.mesh or ""),
        backend=args.backend,
        cluster=args.cluster or "this-host",
        passes=tuple(args.passes),
        rules=tuple(args.rules),
        pins=called_pins(args.pins),
        memory_bytes=bytes_option("--memory", args.memory),
    )
    return compile_text(
        args.model,
        args.output or "-",
        phase=args.phase,
        options=options if is_asked else None,
        force=args.force,
        native=args.native,
        to=args.to,
    )


def _refuse_of_modules(args: argparse.Namespace, what: str) -> None:
    """Refuse options of PyTorch modules for something else.

    Raises:
        IrcError: ``option-value``.
    """
    only = "train lr loss frozen stored_bytes schedule stages layout"
    stated = {name: getattr(args, name) for name in only.split()}
    stated["precision"] = args.precision
    stated["offload"] = args.offload
    stated["micro_batches"] = args.micro_batches is not None
    stated["recompute"] = args.recompute != "none"
    for option, value in stated.items():
        if value:
            raise IrcError(
                "option-value",
                f"--{option.replace('_', '-')} is of PyTorch modules, not of {what}",
                help="name a function that returns (module, example_args): net.py:build",
            )


def _compile_file(args: argparse.Namespace) -> str:
    from irc.from_files import compile_file
    from irc.onnx.given_values import parse_values
    from irc.plan.open_sizes import parse_sizes

    refuse_bare_file(args.model)
    _refuse_of_modules(args, "ONNX files")
    return compile_file(
        args.model,
        args.output or "-",
        mesh=args.mesh,
        backend=args.backend,
        cluster=args.cluster,
        sizes=parse_sizes(args.size),
        values=parse_values(args.value),
        passes=args.passes,
        rules=args.rules,
        pins=args.pins,
        memory_bytes=bytes_option("--memory", args.memory),
        force=args.force,
        native=args.native,
        to=args.to,
    )


def _compile_module(args: argparse.Namespace) -> str:
    from irc.choices import DEFAULT_SCHEDULE
    from irc.exports import export_plan
    from irc.frontends.torch.named import named_example, named_loss

    if args.size or args.value:
        raise IrcError(
            "option-value",
            "--size and --value are of ONNX files; a module has its example arguments",
        )
    memory_bytes = bytes_option("--memory", args.memory)
    stored_bytes = bytes_option("--stored-bytes", args.stored_bytes)
    example = named_example(args.model)
    if args.lr is not None and args.train is None:
        raise IrcError(
            "option-value",
            "--lr is of a plan of training",
            help="add --train, or leave out --lr",
        )
    if args.schedule is not None and args.train is None:
        raise IrcError(
            "option-value",
            "--schedule is of a plan of training",
            help="add --train, or leave out --schedule",
        )
    optimizer = None if args.train is None else {"kind": args.train}
    if optimizer is not None and args.lr is not None:
        optimizer["lr"] = args.lr
    return export_plan(
        example.module,
        example.args,
        example.kwargs,
        out=args.output or "-",
        mesh=args.mesh or "",
        backend=args.backend,
        cluster=args.cluster or "this-host",
        passes=args.passes,
        rules=args.rules,
        pins=args.pins,
        memory_bytes=memory_bytes,
        force=args.force,
        native=args.native,
        optimizer=optimizer,
        loss=None if args.loss is None else named_loss(args.loss),
        frozen=args.frozen,
        micro_batches=args.micro_batches,
        schedule=args.schedule or DEFAULT_SCHEDULE,
        stages=args.stages or "",
        offload=args.offload or "",
        recompute=args.recompute,
        stored_bytes=stored_bytes,
        precision=args.precision,
        layout=args.layout or "",
        to=args.to,
    )
