"""The rehearsal rig: booted hosts, VMs and a Kubernetes node made on this machine.

    hosts/        nspawn hosts: root tree, network, life cycle, ssh
    engine/       the real vLLM as an image and as a venv
    rehearsal/    a twin of a rig, and incidents dealt on it
    vm/           an emulated machine with real GRUB and kernels
    kubernetes/   a real API server and a hollow node on a lab host

`python -m lab` is its command line; `lab.demo` is `make demo`.
"""
