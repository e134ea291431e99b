"""What a line of an engine's log means, and what is done about it.

tests/unit/gates/engine/signatures.yaml has a recorded log of each, with its source.
"""

from __future__ import annotations

from typing import NamedTuple


class Signature(NamedTuple):
    """A pattern of a line, its meaning, and the command or action (empty: the meaning says it)."""

    pattern: str
    meaning: str
    action: str = ""


_DOCTOR = "pyinfra INVENTORY deploys/doctor.py"
_SERVE = "pyinfra INVENTORY deploys/serve.py"
_RESTART = "pyinfra INVENTORY deploys/restart.py"
_CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
# Lowest layer first, as the doctor prints: the first that fits is the cause.
SIGNATURES: tuple[Signature, ...] = (
    # the GPU and its driver
    Signature(
        r"Illegal device id",
        "the GPU library inside the container does not fit its driver (A1)",
    ),
    Signature(
        r"driver/library version mismatch",
        "the driver's libraries were upgraded while its module ran (D12)",
        "reboot the node",
    ),
    Signature(
        r"uncorrectable ECC error",
        "the GPU's memory has an error that ECC cannot correct",
        _DOCTOR,
    ),
    Signature(
        r"unspecified launch failure|GPU is lost|fallen off the bus",
        "the GPU failed; the kernel's log has its Xid",
        _DOCTOR,
    ),
    Signature(
        r"[Ee]rror \(?802\b|system not yet initialized",
        "the NVSwitch fabric is not up: fabric manager does not run",
        "sudo systemctl enable --now nvidia-fabricmanager",
    ),
    Signature(
        r"[Ee]rror \(?803\b|unsupported display driver",
        "the CUDA library is not of the driver that runs: a compat folder of the image comes first",
        "take cuda-compat out of LD_LIBRARY_PATH, or upgrade the driver",
    ),
    Signature(
        r"[Ee]rror \(?804\b|forward compatibility was attempted",
        "the image's CUDA is newer than the driver, and this card has no forward compatibility",
        "upgrade the driver",
    ),
    Signature(
        r"driver version is insufficient|driver on your system is too old",
        "the driver is older than the engine's CUDA wants",
        "upgrade the driver, or take an older image",
    ),
    Signature(
        r"no kernel image is available",
        "the engine was built without code for this GPU",
        "take an image or a wheel for its compute capability",
    ),
    Signature(
        r"ptxas fatal\s*: Value 'sm_",
        "Triton's ptxas is older than this GPU",
        "set TRITON_PTXAS_PATH: /usr/local/cuda/bin/ptxas in the recipe's env",
    ),
    Signature(
        r"No CUDA GPUs are available|Failed to infer device type",
        "the engine sees no GPU: none was given to its container, or the driver is gone",
        _DOCTOR,
    ),
    # docker
    Signature(
        r"unknown or invalid runtime name: nvidia",
        "docker knows no runtime nvidia (D9)",
        _CONFIGURE,
    ),
    Signature(
        r"could not select device driver",
        "docker has nothing that serves --gpus",
        "sudo apt-get install nvidia-container-toolkit && sudo systemctl restart docker",
    ),
    Signature(
        r"unresolvable CDI devices",
        "docker knows no such CDI device: its spec is missing or stale (D13)",
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    # memory
    Signature(
        r"less than desired GPU memory utilization|CUDA out of memory|Device \d+ OOM",
        "memory was short at its start: page cache of earlier loads, or somebody who holds "
        "it (C11, B2)",
        _DOCTOR,
    ),
    Signature(
        r"No available memory for the cache blocks",
        "the weights fill the engine's share: nothing is left for the KV cache",
        "raise gpu_memory_utilization in the recipe",
    ),
    Signature(
        r"KV cache is needed, which is larger|"
        r"maximum number of tokens that can be stored in KV cache",
        "one request of max_model_len does not fit the KV cache",
        "lower max_model_len or raise gpu_memory_utilization in the recipe",
    ),
    Signature(
        r"No space left on device",
        "a disk or /dev/shm is full",
        _DOCTOR,
    ),
    # the fabric
    Signature(
        r"EADDRINUSE|address already in use",
        "another process holds a port that it needs: an orphan, or a worker without "
        "--headless (C5, C10)",
        _RESTART,
    ),
    Signature(
        r"ibv_reg_\w*mr\w* failed with error Cannot allocate memory",
        "no rank can register memory for RDMA: a kernel that is known to be bad (D8), or "
        "NCCL_BUFFSIZE too large",
        _DOCTOR,
    ),
    Signature(
        r"ibv_modify_qp failed with (?:error|110|\d+).*(?:timed out|unreachable|No such)",
        "the two RDMA ports do not reach each other: another subnet, GID or cable (D11)",
        "pyinfra INVENTORY deploys/fabric.py",
    ),
    Signature(
        r"Got completion with (?:status|error)[ =]12",
        "RDMA got no answer of its peer: the GID index, the switch or the cable",
        "pyinfra INVENTORY deploys/fabric.py",
    ),
    Signature(
        r"[Nn]o socket interface found|no NCCL_SOCKET_IFNAME interface|"
        r"family \d+ is neither AF_INET",
        "NCCL_SOCKET_IFNAME names no interface of this node",
        _DOCTOR,
    ),
    Signature(
        r"FABRIC_STATE_OUT_OF_SYNC|NCCL error: unhandled cuda error",
        "NCCL met an error of CUDA, often NVLink's multicast",
        'set NCCL_NVLS_ENABLE: "0" in the recipe\'s env; else reboot the node',
    ),
    Signature(
        r"attaching to shared memory segment /dev/shm/nccl",
        "the ranks of one node do not share /dev/shm",
        "container.ipc: host, or a larger shm_size, in the recipe",
    ),
    Signature(
        r"NCCL error: unhandled system error",
        "NCCL met an error of the network or of /dev/shm; its WARN lines before it say which",
        "NCCL_DEBUG: WARN in the recipe's env",
    ),
    Signature(
        r"(?:closed|reset) by (?:remote )?peer|(?:send|recv)Bytes failed|gloo\S* .*timed out|"
        r"NCCL (?:error|communicator was aborted)|nccl(?:Remote|System|Internal)Error|"
        r"Watchdog caught collective|DistNetworkError|DistStoreError|DistBackendError",
        "it lost its peer",
    ),
    # the program
    Signature(
        r"(Unable to find|No such) image",
        "the image is not on this node",
    ),
    Signature(
        r"vllm: (command )?not found|vllm: No such file|\"vllm\": executable file not found",
        "the image or the venv has no `vllm` program any more (B3)",
    ),
    Signature(
        r"libcudart\.so\.\d+: cannot open shared object|libcublas\S*: cannot open",
        "vLLM and torch are of two CUDA versions",
        "install both from one index",
    ),
    Signature(
        r"undefined symbol: \S+",
        "vLLM was built for another torch",
        "install the torch that its wheel names",
    ),
    Signature(
        r"No such file or directory|Is a directory|not found in \$PATH",
        "a file that it starts is missing inside the container (C13)",
    ),
    # the model
    Signature(
        r"invalid magic characters|HeaderTooLarge|Error while deserializing header",
        "the weights have another format, or a download was cut off (A2)",
    ),
    Signature(
        r"gated repo|GatedRepoError|Repository Not Found",
        "the hub gives this model to known accounts only",
        "accept its terms, and name HF_TOKEN under secrets in the recipe",
    ),
    Signature(
        r"architectures \[.*\] (?:are not supported|failed to be inspected)|"
        r"does not recognize this architecture",
        "this vLLM does not know the model's architecture",
        "take a version that does",
    ),
    Signature(
        r"trust_remote_code=True\S{0,3} to (?:remove|allow)",
        "the model brings code of its own, which vLLM runs only on demand",
        "trust_remote_code: true in the recipe, once you have read that code",
    ),
    Signature(
        r"attention heads \(\d+\) must be divisible",
        "the model's heads cannot be split over so many ranks",
        "tensor_parallel_size in the recipe: a divisor of that number",
    ),
    Signature(
        r"User-specified max_model_len .* greater than the derived",
        "max_model_len is more than the model was made for",
        "lower max_model_len in the recipe",
    ),
    # what owners did to themselves
    Signature(
        r"w13.* referenced before assignment",
        "a baked patch was applied a second time (C15)",
    ),
    Signature(
        r"ShmRingBuffer",
        "VLLM_WORKER_MULTIPROC_METHOD=fork: self-inflicted, no fault of vLLM's code (C14)",
    ),
    Signature(
        r"InvalidCxxCompiler",
        "the image has no compiler and TORCHDYNAMO_DISABLE is not set: the first request kills it",
    ),
    Signature(
        r"unrecognized arguments|invalid .* value",
        "a flag that this vLLM does not know",
        _SERVE + " --dry",
    ),
    Signature(
        r"an illegal memory access was encountered|device-side assert",
        "a kernel of this version fails on this GPU, or the card does",
        _DOCTOR,
    ),
)
