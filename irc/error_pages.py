"""A page for each error code: `irc explain error CODE` prints it.

To add an error, add a block to ``PAGES``; the table is in the order of the codes.
`irc.errors` gives the meaning of the exit codes.
"""

from collections.abc import Mapping
from typing import NamedTuple


class ErrorPage(NamedTuple):
    """What there is to know about an error code.

    Attributes:
        code: The code, words joined by hyphens.
        title: The error in one line.
        exit_code: The exit status of a command that ends with it.
        what: What irc found.
        why: Why it cannot go on.
        example: A command or input that fails so.
        fix: The same, mended.
    """

    code: str
    title: str
    exit_code: int
    what: str
    why: str
    example: str
    fix: str

    def render(self) -> str:
        """The page as text."""
        example = self.example.replace("\n", "\n    ")
        fix = self.fix.replace("\n", "\n    ")
        return (
            f"{self.code}: {self.title} (exit code {self.exit_code})\n\n"
            f"{self.what}\n{self.why}\n\n"
            f"Fails:\n    {example}\n\nInstead:\n    {fix}\n"
        )


PAGES = (
    ErrorPage(
        code="backend-unknown",
        title="no backend has this name",
        exit_code=2,
        what="The name after `--backend` is neither a backend of irc nor one of a plug-in.",
        why="A backend writes the kernels of the plan, so irc cannot choose one for you.",
        example="irc compile model.onnx -o plan --backend tritn",
        fix="irc compile model.onnx -o plan --backend triton   (irc list backends names them)",
    ),
    ErrorPage(
        code="cache-unsafe",
        title="the folder for measured times cannot be used",
        exit_code=2,
        what="The cache folder is a link, belongs to somebody else, or others may write to it.",
        why="Plans are priced with what is in it, so nobody else may be able to change that.",
        example="IRC_CACHE_DIR=/tmp irc cluster calibrate",
        fix="IRC_CACHE_DIR=$HOME/.cache/irc irc cluster calibrate   (a folder of mode 700)",
    ),
    ErrorPage(
        code="capture-failed",
        title="the module could not be captured as a graph",
        exit_code=3,
        what="PyTorch could not export the module: its Python code depends on tensor values.",
        why="A plan is made before the values are known, so control flow must not depend on them.",
        example="if x.sum() > 0: x = x + 1",
        fix="x = torch.where(x.sum() > 0, x + 1, x)",
    ),
    ErrorPage(
        code="check-failed",
        title="the plan does not compute what the model computes",
        exit_code=1,
        what="The plan and the reference ran on the same inputs and their outputs differ.",
        why="The difference is larger than the order of a reduction explains.",
        example="irc check plan",
        fix="irc check plan   (and report it: unless the plan was edited, this is a bug of irc)",
    ),
    ErrorPage(
        code="cluster-invalid",
        title="a cluster file cannot be read",
        exit_code=2,
        what="The TOML file lacks a key, has one that irc does not know, or a number that cannot"
        " be.",
        why="Every price of a plan comes from these numbers, so none is guessed.",
        example="[device] without peak_tflops = { f32 = 38.0 }",
        fix="[device] with name, peak_tflops, memory_gb, memory_gb_per_s, and a [[link]] per level",
    ),
    ErrorPage(
        code="cluster-unknown",
        title="no cluster has this name",
        exit_code=2,
        what="The cluster is neither a preset nor the path of a .toml file.",
        why="Plans are priced on a cluster, and differ from one to the other.",
        example="--cluster 8xH10",
        fix="--cluster 8xH100   (or a file that ends in .toml)",
    ),
    ErrorPage(
        code="collective-invalid",
        title="a collective cannot complete",
        exit_code=2,
        what="A collective runs over an axis that the mesh lacks, is not waited for once, or has"
        " sizes that its group does not make.",
        why="The ranks of a group must agree on every collective, or they wait for each other for"
        " ever.",
        example="comm.all_gather over an axis of 2 ranks, from [3, 8] to [3, 8]",
        fix="[3, 16] along dim 1   (lower-boxing writes them so; this text was edited)",
    ),
    ErrorPage(
        code="command-unknown",
        title="irc has no such command",
        exit_code=2,
        what="The first word after `irc` is not the name of a command, or there is none.",
        why="Each command has options of its own, so irc cannot guess.",
        example="irc complie model.onnx -o plan",
        fix="irc compile model.onnx -o plan   (irc --help lists the commands)",
    ),
    ErrorPage(
        code="compiler-missing",
        title="a tool that this backend needs is not installed",
        exit_code=2,
        what="The backend compiles its kernels with a program or package that was not found.",
        why="The plan would hold sources that nothing here can compile.",
        example="irc compile model.onnx -o plan --backend triton   (without triton)",
        fix="pip install 'irc-compiler[triton]'",
    ),
    ErrorPage(
        code="constraint-syntax",
        title="a constraint cannot be read",
        exit_code=2,
        what="A line of the constraint file is not `[pin|forbid] NAME = PLACEMENT [priority N]`.",
        why='A name is a glob on arguments; `op ID` names an op, `at "FILE:LINE"` a source line.',
        example="pin weights [tensor = S(0)]",
        fix="pin *.weight = [tensor = S(0)]",
    ),
    ErrorPage(
        code="dtensor-placement",
        title="a placement of another system has no equal in irc",
        exit_code=2,
        what="A DTensor or OneFlow placement says what S(dim), B and P(sum|max|min) cannot.",
        why="Averages, products and masked partial values need an operation before they are read.",
        example="Partial('avg')",
        fix="Replicate(), Shard(0), or Partial('sum')",
    ),
    ErrorPage(
        code="external-data",
        title="weights outside of the ONNX file are refused",
        exit_code=2,
        what="The file keeps a tensor in another file that is not safe, or not possible, to read.",
        why="A model must not read files of yours: only plain files in its own folder are mapped.",
        example="external data at ../secrets, or a link to a file elsewhere",
        fix="put the data file itself beside the model, as the exporter wrote it",
    ),
    ErrorPage(
        code="file-missing",
        title="a file does not exist or cannot be read",
        exit_code=2,
        what="A path on the command line, or one that the model names, leads to no readable file.",
        why="There is nothing to compile.",
        example="irc compile modle.onnx -o plan",
        fix="irc compile model.onnx -o plan",
    ),
    ErrorPage(
        code="fusion-illegal",
        title="a flow.fusion is not one kernel",
        exit_code=2,
        what="The ops inside a `flow.fusion` do not fit one loop nest, or are library ops.",
        why="A fusion is one kernel: its reductions share their dims, its results the others.",
        example="a flow.fusion that reduces dim 0 of one value and dim 1 of another",
        fix="split it in two, or leave grouping to pass fuse",
    ),
    ErrorPage(
        code="input-mismatch",
        title="the inputs are not those that the program takes",
        exit_code=2,
        what="An input has another name, shape or dtype than the program was compiled for.",
        why="The kernels of a plan are made for these shapes and dtypes.",
        example="irc run plan --inputs batch16.npz   (compiled for batch 8)",
        fix="irc run plan --inputs batch8.npz",
    ),
    ErrorPage(
        code="internal",
        title="a bug in irc",
        exit_code=70,
        what="irc met a state that its authors thought impossible.",
        why="No input should be able to cause this.",
        example="irc compile model.onnx -o plan",
        fix="irc --traceback compile model.onnx -o plan   (and report what it prints)",
    ),
    ErrorPage(
        code="ir-invalid",
        title="the program breaks a rule of its level",
        exit_code=2,
        what="The text parses, but an operation or type in it does not verify.",
        why="Every pass may rely on the rules of the level that it reads.",
        example="a tensor<4x8xf32> where the operation states tensor<8x4xf32>",
        fix="make the type the one that the message names",
    ),
    ErrorPage(
        code="ir-syntax",
        title="the text is not a program",
        exit_code=2,
        what="The parser met something that it does not expect at the place it names.",
        why="irc reads the textual form that `irc opt` prints.",
        example="%0 = flow.relu %x",
        fix="%0 = flow.relu(%x) : (!flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>",
    ),
    ErrorPage(
        code="ir-too-large",
        title="the text would need too much memory to parse",
        exit_code=2,
        what="The text is nested too deeply, or holds too long a number.",
        why="A few bytes can describe a constant that fills the memory.",
        example="a number of 5000 digits",
        fix="keep constants in the weights file, not in the text",
    ),
    ErrorPage(
        code="kernel-invalid",
        title="a kernel file of a plan is not what the cpu backend writes",
        exit_code=2,
        what="A file under `kernels/` does not begin with its description, or is not valid LLVM"
        " IR.",
        why="The plan was edited by hand, or written by another version of irc.",
        example="irc run plan   (after editing plan/kernels/k3.ll)",
        fix="irc compile model.onnx -o plan   (writes the kernels again)",
    ),
    ErrorPage(
        code="loss-unknown",
        title="it is not clear which result is the loss",
        exit_code=2,
        what="The program gives no result that is one real number, or several.",
        why="Gradients are those of one number; which of several to train on is your decision.",
        example="differentiate a model that returns logits of shape [2, 9, 97]",
        fix='return the loss, or name it: differentiate{loss="loss"}',
    ),
    ErrorPage(
        code="mapping-syntax",
        title="a task mapping cannot be read",
        exit_code=2,
        what="The text is not built from `spatial(...)`, `repeat(...)` and `*`.",
        why="A mapping is proved to cover each task once, so it has to be in this notation.",
        example="spatial(4, 8) + repeat(2, 1)",
        fix="spatial(4, 8) * repeat(2, 1)",
    ),
    ErrorPage(
        code="mesh-axis-indivisible",
        title="a dimension does not divide by the mesh axis that is to shard it",
        exit_code=2,
        what="A pin asks for equal shards of a dimension whose size the axis does not divide.",
        why="Shards may be uneven, but equal ones were asked for.",
        example="a dimension of 11008 over an axis of size 6",
        fix="use an axis size that divides the dimension, or drop `equal` from the pin",
    ),
    ErrorPage(
        code="mesh-mismatch",
        title="two meshes, or a mesh and a placement, do not fit",
        exit_code=2,
        what="A placement names an axis that the mesh lacks, or the mesh does not fit the cluster.",
        why="A placement says something about each axis of one mesh.",
        example="--mesh data=4,tensor=4 on a cluster of 8 devices",
        fix="--mesh data=2,tensor=4",
    ),
    ErrorPage(
        code="mesh-syntax",
        title="a mesh cannot be read",
        exit_code=2,
        what="A mesh is a list of axes, each a name, `=` and a positive whole number.",
        why="Placements refer to the axes by name.",
        example="--mesh 2x4",
        fix="--mesh data=2,tensor=4",
    ),
    ErrorPage(
        code="no-boxing",
        title="no collectives lead from one placement to the other",
        exit_code=2,
        what="A boxing asks for a placement that collectives cannot make of the one its value has.",
        why="Boxing never makes a partial value, and each step in `via` changes one mesh axis.",
        example="sbp.boxing from [data = B] to [data = P(sum)]",
        fix="box to [data = B] or [data = S(0)]; only ops make partial values",
    ),
    ErrorPage(
        code="no-signature",
        title="the placements around an operation fit none of its signatures",
        exit_code=2,
        what="Ranks that hold the operands so cannot compute the results so without communication.",
        why="Each operation states which splits it allows; another one would give wrong numbers.",
        example="flow.reduce of the split dim 0, with a result that is B",
        fix="make the result P(sum), and put an sbp.boxing to B behind it",
    ),
    ErrorPage(
        code="not-differentiable",
        title="an operation between the parameters and the loss has no derivative",
        exit_code=3,
        what="A gradient has to pass an operation that neither irc nor its library can"
        " differentiate.",
        why="Leaving it out would train on a wrong gradient without a word.",
        example="loss = aten::rrelu of a trained layer, which draws numbers of its own",
        fix="freeze the parameters before it, detach its operand, or write it with other ops",
    ),
    ErrorPage(
        code="not-onnx",
        title="the file is not an ONNX model",
        exit_code=2,
        what="The file exists, but it does not decode as an ONNX model, or has no graph.",
        why="There is nothing to compile.",
        example="irc compile weights.safetensors -o plan",
        fix="irc compile model.onnx -o plan",
    ),
    ErrorPage(
        code="onnx-invalid",
        title="the ONNX model contradicts itself",
        exit_code=2,
        what="The file decodes, but its graph is not valid: shapes do not fit, values are missing.",
        why="What it computes is not defined.",
        example="a MatMul of [2, 3] and [4, 5]",
        fix="export the model again; onnx.checker.check_model(path, full_check=True) says more",
    ),
    ErrorPage(
        code="onnx-version",
        title="the ONNX model has a version that is not read",
        exit_code=2,
        what="The IR version or the opset of the model is newer or older than irc reads.",
        why="Ops mean something else from opset to opset, so a guess could change the results.",
        example="a model of opset 6, or of an opset that the installed onnx does not know",
        fix="onnx.version_converter.convert_version(model, 17), or update onnx",
    ),
    ErrorPage(
        code="op-undeclared",
        title="an op is not known in this process",
        exit_code=2,
        what="A program calls an op of a package that this process has not loaded, or "
        "`irc.register_op` was given something that is no op.",
        why="Each process of a plan looks its ops up by name, in torch and in declarations.",
        example="irc run plan   (the plan calls mylib::scan, and nothing imports mylib)",
        fix='[project.entry-points."irc.ops"]\nmylib = "mylib.declared"'
        "   (in mylib's pyproject.toml)",
    ),
    ErrorPage(
        code="op-unsupported",
        title="an operation cannot be compiled",
        exit_code=3,
        what="The model holds an operation that has no flow form and that no library here runs.",
        why="Leaving it out would change what the model computes.",
        example="a custom ONNX operator without a function body",
        fix="export the model without it, or register the operation in a plug-in",
    ),
    ErrorPage(
        code="openmp-missing",
        title="there is no OpenMP runtime for kernels on several threads",
        exit_code=2,
        what="Kernels run on the thread pool of libgomp, which torch brings along; none was found.",
        why="Without a pool there is only one thread, and irc does not drop the others silently.",
        example="irc run plan --threads 2",
        fix="irc run plan --threads 1   (or install libgomp)",
    ),
    ErrorPage(
        code="option-unknown",
        title="no option has this name",
        exit_code=2,
        what="A command, or a pass in `-p`, was given an option that it does not have.",
        why="To pass over an option would give you another program than you asked for.",
        example="irc compile model.onnx -o plan --msh data=2",
        fix="irc compile model.onnx -o plan --mesh data=2",
    ),
    ErrorPage(
        code="option-value",
        title="an option or argument is missing or has a value that is not allowed",
        exit_code=2,
        what="A required argument is missing, or a value is of another kind than the option takes.",
        why="irc does not guess what was meant.",
        example="irc run plan --nproc four",
        fix="irc run plan --nproc 4",
    ),
    ErrorPage(
        code="output-exists",
        title="the output folder exists already",
        exit_code=2,
        what="The folder that the plan is to be written to holds files.",
        why="A plan is one piece: files of an older one must not mix with it.",
        example="irc compile model.onnx -o plan   (twice)",
        fix="irc compile model.onnx -o plan --force",
    ),
    ErrorPage(
        code="output-write",
        title="a file cannot be written",
        exit_code=2,
        what="The system refused to write the file that the command was told to write.",
        why="What was measured would be lost, so irc says so instead of printing it only.",
        example="irc cluster calibrate -o /no/such/folder/host.toml",
        fix="irc cluster calibrate -o host.toml",
    ),
    ErrorPage(
        code="pass-unknown",
        title="no pass has this name",
        exit_code=2,
        what="The name is neither a pass of irc nor one of an installed plug-in.",
        why="To leave out a pass would give you another program than you asked for.",
        example="irc opt program.mlir -p canonicalise",
        fix="irc opt program.mlir -p canonicalize   (irc list passes names them)",
    ),
    ErrorPage(
        code="placement-syntax",
        title="a placement cannot be read",
        exit_code=2,
        what="A placement gives for each mesh axis `S(dim)`, `B`, `P(sum)`, `P(max)` or `P(min)`.",
        why="The notation is OneFlow's; other words for the same thing are not guessed.",
        example="[data = Shard(0)]",
        fix="[data = S(0)]",
    ),
    ErrorPage(
        code="plan-corrupt",
        title="a file of the plan is damaged",
        exit_code=2,
        what="A file of the plan is missing, cannot be decoded, or differs from its digest.",
        why="Ranks that run different files compute wrong numbers or wait for each other for ever.",
        example="irc run plan   (after a copy that broke off)",
        fix="copy the folder again, or compile again",
    ),
    ErrorPage(
        code="plan-hash-mismatch",
        title="the ranks hold different plans",
        exit_code=2,
        what="All ranks compare the hash of their plan before they start, and one differs.",
        why="Their collectives would not match.",
        example="compile on one host, copy the plan to some of the others",
        fix="copy the same folder to every host",
    ),
    ErrorPage(
        code="plan-missing",
        title="there is no plan here",
        exit_code=2,
        what="The path is not a folder that `irc compile` wrote: it has no manifest.",
        why="There is nothing to run.",
        example="irc run model.onnx",
        fix="irc compile model.onnx -o plan && irc run plan",
    ),
    ErrorPage(
        code="plan-version",
        title="the plan has another format than this irc reads",
        exit_code=2,
        what="The format version in the manifest is not the one of this release.",
        why="A plan is read exactly as it was written, or not at all.",
        example="irc run plan   (written by an older irc)",
        fix="compile again with this irc",
    ),
    ErrorPage(
        code="plugin-broken",
        title="a plug-in does not provide what it registers",
        exit_code=2,
        what="A package registers this name, but it does not load or is of another kind.",
        why="irc loads a plug-in when its name is used, and this one was.",
        example='my-pass = "my_package.no_such_module:MyPass"',
        fix='my-pass = "my_package.my_pass:MyPass"   (or uninstall the package that is named)',
    ),
    ErrorPage(
        code="plugin-clash",
        title="two packages provide the same name",
        exit_code=2,
        what="An installed package registers a name that irc, or another package, has already.",
        why="Which one runs would depend on the order of installation.",
        example="two packages that both register the pass 'my-pass'",
        fix="uninstall one of them, or rename the pass in it",
    ),
    ErrorPage(
        code="rule-syntax",
        title="the rule of an operation cannot be read",
        exit_code=2,
        what="A rule names the index factors of each operand and result, and the reductions.",
        why="The signatures, local shapes and costs of the operation all follow from it.",
        example="(b m k, b k n) -> b m n, sum k",
        fix="(b m k, b k n) -> (b m n) sum(k)",
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
        code="sharding-infeasible",
        title="no sharding fits",
        exit_code=4,
        what="No choice of placements satisfies the memory budget and the pins together.",
        why="The message names the constraints in conflict and, if there is one, a larger budget.",
        example="a memory budget below one shard of the weights",
        fix="raise the budget, enlarge the mesh, or drop a pin that the message names",
    ),
    ErrorPage(
        code="size-unbound",
        title="a named size has no number",
        exit_code=2,
        what="A tensor of the program has a size that is still a name.",
        why="Sharding, kernels and memory are planned for numbers.",
        example="irc opt model.mlir -p 'bind-sizes{sizes=B=4}'   (the program also names S)",
        fix="irc opt model.mlir -p 'bind-sizes{sizes=\"B=4,S=16\"}'",
    ),
    ErrorPage(
        code="size-unknown",
        title="the model has no size of this name",
        exit_code=2,
        what="A number was given for a name that no dimension of an input has.",
        why="It would have no effect, and is probably misspelt.",
        example="irc compile model.onnx -o plan --size bacth=1",
        fix="irc compile model.onnx -o plan --size batch=1",
    ),
    ErrorPage(
        code="target-unknown",
        title="no device, cluster or target has this name",
        exit_code=2,
        what="The name is not a preset of irc and not the path of a description.",
        why="Costs and kernels are made for one device, so irc cannot choose for you.",
        example="irc compile model.onnx -o plan --cluster my-h100",
        fix="irc compile model.onnx -o plan --cluster my-h100.json",
    ),
    ErrorPage(
        code="world-size",
        title="the number of processes is not that of the plan",
        exit_code=2,
        what="A plan is made for a number of ranks, and another number was started.",
        why="Each rank runs its own part: with one too few, the others would wait for ever.",
        example="irc run plan --nproc 2   (compiled for data=2,tensor=2)",
        fix="irc run plan --nproc 4",
    ),
)

REGISTRY: Mapping[str, ErrorPage] = {page.code: page for page in PAGES}
