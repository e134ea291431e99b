"""The incidents of docs/incidents.md that no twin can hold, each with the reason."""

KUBERNETES = "a Kubernetes rig has no twin; make test-cluster replays it on a real API"
BOARD = "needs the board itself"
RECORDED = "health of a real machine; the gates' tests read recorded output"

NOT_HELD = {
    "A1": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "A3": KUBERNETES,
    "A4": KUBERNETES,
    "A5": KUBERNETES,
    "A6": "the libvgpu of HAMi is on no twin; make test replays it on lab hosts",
    "B4": "another kernel is booted: make test-vm",
    "B6": BOARD,
    "B7": BOARD,
    "B8": "no figure of a twin is a figure",
    "C9": "nothing is broken; provenance answers before a rebuild",
    "C11": "all hosts share this machine's memory; make test-alive runs one out of it",
    "D1": "needs a CX-7",
    "D2": RECORDED,
    "D3": RECORDED,
    "D4": RECORDED,
    "D6": "the host itself hangs: make test-vm",
    "D7": "all hosts share this machine's memory; make test-alive runs one out of it",
    "D8": "another kernel is booted, and RDMA: " + RECORDED,
    "D9": "a lab host's docker has no GPUs; the gates' tests read what docker says",
    "D10": "needs Docker 29; node's tests read its recorded answers",
    "D11": "needs RDMA devices; " + RECORDED,
    "D12": "needs a driver's module; make test-vm loads a stand-in of it",
    "D13": "needs a CDI spec that docker takes; make test-containerd has one",
    "D14": RECORDED,
    "D19": "a CPU engine without a compiler has no compiled kernels",
    "D20": KUBERNETES,
}
