#!/bin/bash
# The steps of the Dockerfile beside it: steps.sh base|patches|deepgemm|torch.
# A step that fails says why in one line that begins with "rigbook:": image.py shows that line.
set -euo pipefail
# The base's working folder may hold a checkout that python would take for the installed package.
cd /
sources=/opt/DeepGEMM

fail() {
  echo "rigbook: $*" >&2
  exit 1
}

# The folder in which a package is installed; it is found, not imported.
library_of() {
  python3 -c 'import importlib.util, pathlib, sys
found = importlib.util.find_spec(sys.argv[1])
if found is None or not found.origin: sys.exit(1)
print(pathlib.Path(found.origin).parents[1])' "$1"
}

# What takes seconds to find out is not told after the half hour that DeepGEMM may take.
base() {
  local tool known nvcc=/usr/local/cuda/bin/nvcc
  for tool in git python3; do
    command -v "$tool" >/dev/null || fail "the base has no $tool"
  done
  [[ ${DEEPGEMM_COMMIT-} =~ ^[0-9a-f]{40}$ ]] ||
    fail "build.args DEEPGEMM_COMMIT is '${DEEPGEMM_COMMIT-}'; allowed: a commit with all its 40" \
      "digits, because a branch moves"
  python3 -m pip --version >/dev/null || fail "the base's python3 has no pip"
  library_of vllm >/dev/null ||
    fail "the base's python3 has no vllm: name an image of vLLM as build.base"
  # Its kernels are compiled when they are first used, by this nvcc (DG_JIT_NVCC_COMPILER).
  [[ -x $nvcc ]] ||
    fail "the base has no $nvcc, with which DeepGEMM compiles its kernels: take a devel image"
  known=$("$nvcc" --list-gpu-arch) || fail "$nvcc of the base does not run"
  [[ $'\n'$known$'\n' == *$'\n'compute_121$'\n'* ]] ||
    fail "$nvcc of the base does not know the GB10 (compute_121): take CUDA 13"
  torch
}

# Each patch goes in once: one that is there already breaks the engine when it goes in again (C15).
patches() {
  local library patch why
  library=$(library_of vllm)
  cd "$library"
  # In a repository git would leave out all files that are not its own, and say nothing.
  export GIT_CEILING_DIRECTORIES=${library%/*}
  shopt -s nullglob
  for patch in /opt/rigbook/patches/*.patch; do
    if git apply --reverse --check "$patch" 2>/dev/null; then
      fail "patch ${patch##*/} is in the base already: take it out of patches/"
    fi
    why=$(git apply --whitespace=nowarn "$patch" 2>&1) ||
      fail "patch ${patch##*/} does not apply to the vLLM in $library:" $why
    git apply --reverse --check "$patch" || fail "patch ${patch##*/} is not in after it was applied"
    echo "patch ${patch##*/} is in"
  done
}

# With its submodules: without CUTLASS the import works and the first request fails (C2).
deepgemm() {
  local library header
  git clone --no-checkout -- "$DEEPGEMM_REPOSITORY" "$sources" ||
    fail "git clone of $DEEPGEMM_REPOSITORY failed"
  git -C "$sources" checkout --detach "$DEEPGEMM_COMMIT" ||
    fail "$DEEPGEMM_REPOSITORY has no commit $DEEPGEMM_COMMIT"
  git -C "$sources" submodule update --init --recursive ||
    fail "the submodules of DeepGEMM cannot be fetched"
  header=third-party/cutlass/include/cutlass/cutlass.h
  [[ -f $sources/$header ]] ||
    fail "DeepGEMM at $DEEPGEMM_COMMIT has no $header: its submodule CUTLASS is not there"
  # Its setup.py would fetch a wheel made for CUDA 12 for any CUDA after 11 (both names were in use);
  # a Debian base refuses pip outside of a venv.
  DG_FORCE_BUILD=1 DEEP_GEMM_FORCE_BUILD=TRUE PIP_BREAK_SYSTEM_PACKAGES=1 \
    python3 -m pip install --no-cache-dir --no-deps --no-build-isolation "$sources" ||
    fail "pip could not install DeepGEMM"
  rm -rf "$sources"
  library=$(library_of deep_gemm) || fail "pip installed DeepGEMM, and python3 does not find deep_gemm"
  for header in cutlass/cutlass.h cute/tensor.hpp; do
    [[ -f $library/deep_gemm/include/$header ]] || fail "deep_gemm is installed without include/$header"
  done
}

# A torch for the CPU loads, and vLLM's extension does not (C1); `cu13` stands for any CUDA 13.
torch() {
  local found version
  read -r found version < <(python3 -c 'import torch
cuda = torch.version.cuda
print("cu" + cuda.replace(".", "") if cuda else "cpu", torch.__version__)') ||
    fail "python3 cannot import torch"
  [[ $found == "$TORCH_VARIANT"* ]] ||
    fail "torch $version is a $found build, this image needs $TORCH_VARIANT:" \
      "a CPU wheel came in (C1), or the base is another"
}

"$1"
