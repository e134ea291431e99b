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
vgpu_dir = "/usr/local/vgpu"
# The model files as the host sees them, target and drafter, with the format that each loader reads:
# models = {"/path/target.gguf": "gguf", "/path/draft/model.safetensors": "safetensors"}
# Where the host reaches the engine (kubectl get service), and the name that it serves; verify and
# gpu_limit then ask for a real completion:
# url = "http://10.96.0.10:8000"
# model = "qwen3.6-27b"
