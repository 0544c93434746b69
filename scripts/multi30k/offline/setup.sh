#!/usr/bin/env bash
# Once, from the root of a checkout, on the machine without a network: an environment in $VENV (default: /tmp/venv) around
# that machine's torch, from the folder that kit.sh made and that this file lies in.
set -euo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) repo=$PWD venv=${VENV:-/tmp/venv}
[[ -d $repo/embinit_fairseq ]] || { echo "call it from the root of a checkout" >&2; exit 2; }
[[ ! -f $venv/ready ]] || exit 0
base=$(command -v python3)
"$base" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
# torch and the rest of the machine, behind what is installed here
"$base" -c 'import site; print("\n".join(site.getsitepackages()))' >"$site/zz_machine.pth"
"$base" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$kit"/wheels/*.whl
"$base" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' \
  "$kit/wheels/fairseq.tar.xz" "$site"
# the checkout; the hook of fairseq_compat sorts behind the paths
printf '%s\n' "$repo" "$repo/fairseq_compat/src" >"$site/aa_checkout.pth"
cp "$repo/fairseq_compat/src/fairseq_compat_hook.pth" "$site/zzz_fairseq_compat_hook.pth"
script() { # NAME MODULE FUNCTION
  printf '#!%s\nimport sys\nfrom %s import %s\nsys.exit(%s())\n' "$venv/bin/python" "$2" "$3" "$3" >"$venv/bin/$1"
  chmod +x "$venv/bin/$1"
}
script fairseq-train fairseq_cli.train cli_main
script fairseq-generate fairseq_cli.generate cli_main
script embinit embinit_fairseq.cli.main main
"$venv/bin/python" - <<'P'
import torch, fairseq, sacrebleu, hydra, embinit_fairseq
print("torch", torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() else "without a GPU")
P
touch "$venv/ready"
