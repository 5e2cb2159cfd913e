"""Pages of errors of machines: clusters, devices, processors, memory, and the tools on them."""

from irc.error_pages.page import ErrorPage

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
        code="cluster-import",
        title="a description of machines cannot be read",
        exit_code=2,
        what="A file is none that `irc cluster import` knows, contradicts itself or others, or"
        " lacks what the cluster's prices need.",
        why="Counts and wires are taken from these files as they stand; none is guessed.",
        example="irc cluster import node.txt   (which says NV18, but not of which GPUs)",
        fix="irc cluster import node.txt --kind H100 --nodes 4 -o lab.toml",
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
        code="compiler-missing",
        title="a tool that this backend needs is not installed",
        exit_code=2,
        what="The backend compiles its kernels with a program or package that was not found.",
        why="The plan would hold sources that nothing here can compile.",
        example="irc compile model.onnx -o plan --backend triton   (without triton)",
        fix="pip install 'irc-compiler[triton]'",
    ),
    ErrorPage(
        code="device-failed",
        title="the GPU's driver refuses a call",
        exit_code=1,
        what="Loading, starting or copying for a kernel failed, now or in a kernel started before.",
        why="Results from then on would be wrong, and the driver refuses all later calls.",
        example="irc run plan   (another process has all of the GPU's memory)",
        fix="irc run plan   (when it is free; CUDA_LAUNCH_BLOCKING=1 names the call that fails)",
    ),
    ErrorPage(
        code="device-missing",
        title="the plan's kernels need a GPU, and there is none",
        exit_code=3,
        what="The plan was compiled with a backend for GPUs, and torch finds no CUDA device here.",
        why="Triton and CUDA kernels do not run on a CPU, and irc does not run others instead.",
        example="irc compile net.py:build -o plan --backend triton && irc run plan",
        fix="irc compile net.py:build -o plan --backend cpu && irc run plan   (or run it on a GPU)",
    ),
    ErrorPage(
        code="device-unfit",
        title="the plan's kernels are for another GPU",
        exit_code=3,
        what="A kernel has instructions that the GPU here lacks: of 9.0, or of 8.0 and later.",
        why="Machine code is of one generation, and another program would not be the plan.",
        example="irc run plan   (a plan of --backend cuda for an H100, on an A100)",
        fix="fast = irc.compile(model, backend='cuda')   (for the GPU at hand)",
    ),
    ErrorPage(
        code="machine-busy",
        title="other programs computed while this machine was measured",
        exit_code=2,
        what="In the mean they used more than a quarter of a core, and more than 5 % of all cores.",
        why="Every later plan for this machine would be priced with times that depend on them.",
        example="irc cluster calibrate   (while a training run has the cores)",
        fix="irc cluster calibrate   (once it has ended; --anyway keeps it all the same)",
    ),
    ErrorPage(
        code="memory-exceeded",
        title="a trial run takes more memory than the machine has",
        exit_code=2,
        what="Random inputs of the sizes of the plan, and what a call of it holds, do not fit; or"
        " all ranks of a plan, started on this machine, take more than is free on it.",
        why="The system would end the process, or others, in the middle of the run.",
        example="irc run plan   (a plan whose example is 64 images of 8192 rows and columns)",
        fix="irc run plan --size batch=1   (or give inputs: --inputs F.npz; or rehearse one rank: "
        "--comm fake)",
    ),
    ErrorPage(
        code="native-missing",
        title="a plan holds no native program",
        exit_code=2,
        what="The plan was made for several ranks or for a GPU, has kernels that are compiled for"
        " each of its open sizes, is a host program of which torch runs an op, or was compiled with"
        " `--native none`: it has no folder `native`.",
        why="Without torch, only the machine code in that folder runs a plan.",
        example="python -m irc.runtime plan   (made with --mesh data=2)",
        fix="irc compile model.onnx -o plan, on one CPU device; or: irc run plan",
    ),
    ErrorPage(
        code="no-memory",
        title="a tensor has a shape, and no memory that holds its elements",
        exit_code=2,
        what="A weight or an input is on the meta device or a fake tensor, or its storage was "
        "resized to less than its shape takes.",
        why="A kernel is given addresses; one that is none ends the process.",
        example="step(x, y); irc.compile(model)(x)   (the ranks of a step on a mesh hold the "
        "parameters in parts)",
        fix="model.load_state_dict(step.state_dict()['model'], assign=True); irc.compile(model)(x)",
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
        code="processor-unsupported",
        title="the program has no code for this machine",
        exit_code=2,
        what="Each code in the plan is for a kind of processor, and this one is of none of them.",
        why="Its instructions would end the process, so irc looks first.",
        example="irc compile model.onnx -o plan --native x86-64-v4, run where there is no AVX-512",
        fix="irc compile model.onnx -o plan --native x86-64-v3,x86-64-v4",
    ),
)
