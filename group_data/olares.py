"""What is common to an Olares One with a shared GPU."""

ssh_user = "olares"
# An unknown host key stops the run: log in once by hand and compare it.
ssh_strict_host_key_checking = "yes"

rig = "olares"
# kubectl on the host, else `k3s kubectl`; both with sudo.
kubectl = "auto"
# Yours: an app of Olares runs in the namespace APP-USER; `kubectl get deployments -A` lists both.
namespace = "lucedflashqwen36one"
deployment = "lucedflashqwen36one"
# The engine's container, where the Deployment has several:
# container = "lucedflash"
vgpu_dir = "/usr/local/vgpu"
# The model files as the host sees them, target and drafter, with the format that each loader reads:
# models = {"/path/target.gguf": "gguf", "/path/draft/model.safetensors": "safetensors"}
# The name that the engine serves, and how it is asked for a real completion: through its Service,
# or with `port` alone by the pod's own Python. serve, verify, doctor and gpu_limit then ask.
# model = "qwen3.6-27b"
# service = "lucedflashqwen36one"
# port = 8000
# How long a start may take, kernels that compile at the first request included:
# start_budget_s = 600
