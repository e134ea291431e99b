"""The rehearsal rig: booted hosts, VMs and a Kubernetes node made on this machine.

    lifecycle host      nspawn hosts: made and removed; one host's network, processes, ssh
    engine              the real vLLM as an image and as a venv
    rehearsal incidents a twin of a rig, and incidents dealt on it
    vm                  an emulated machine with real GRUB and kernels
    kubernetes          a real API server and a hollow node on a lab host
    gpu                 a rig's host on a machine with a real GPU

`python -m lab` is its command line; `lab.demo` is `make demo`.
"""
