"""The incidents of docs/incidents.md that no twin can hold, each with the reason."""

KUBERNETES = "a Kubernetes rig has no twin; make test-cluster replays it on a real API"
BOARD = "needs the board itself"
TOWERS = "make test-tower replays it on the real venv, with two versions of wheels"
FILES = "the small engine's image has none of the files; make test-full reads a recorded one"
RECORDED = "health of a real machine; the gates' tests read recorded output"

NOT_HELD = {
    "A1": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "A3": KUBERNETES,
    "A4": KUBERNETES,
    "A5": KUBERNETES,
    "A6": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "B1": TOWERS,
    "B4": "another kernel is booted: make test-vm",
    "B5": "nothing is broken yet; " + TOWERS,
    "B6": BOARD,
    "B7": BOARD,
    "B8": "no figure of a twin is a figure",
    "C2": FILES,
    "C3": FILES,
    "C4": FILES,
    "C9": "nothing is broken; provenance answers before a rebuild",
    "C11": "all hosts share this machine's memory; make test-alive runs one out of it",
    "C15": FILES,
    "D1": "needs a CX-7",
    "D2": RECORDED,
    "D3": RECORDED,
    "D4": RECORDED,
    "D6": "the host itself hangs: make test-vm",
    "D7": "all hosts share this machine's memory; make test-alive runs one out of it",
    "D8": "another kernel is booted, and RDMA: " + RECORDED,
    "D11": "needs RDMA devices; " + RECORDED,
    "D12": "needs a driver's module; make test-vm loads a stand-in of it",
    "D13": "needs a CDI spec that docker takes; make test-containerd has one",
    "D14": RECORDED,
    "D18": "a disk dies: make test wipes a store and brings the venv back from the copy",
    "D19": "a CPU engine without a compiler has no compiled kernels",
}
