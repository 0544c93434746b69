#!/usr/bin/env bash
# Runs the tests on other revisions of fairseq: those of the layer and those of the plugin that touch models.
set -euo pipefail

if [[ $# -eq 0 || $1 == -h || $1 == --help ]]; then
    cat <<'USAGE'
Usage: bash scripts/fairseq_versions.sh CHECKOUT ...

For each CHECKOUT (a folder with the sources of a fairseq; it stays as it is) fairseq is built into a folder of its own, and
the tests run with it in front of the fairseq of the environment. At the end there is a table: passed, failed, skipped.

Environment variables: OUTPUT, where the builds and logs go, kept for the next call (default: fairseq_versions); TESTS, what
to run (default: the tests of fairseq_compat, and those of hooks, models and trainings); VENV, the environment (default:
.venv in the root of the repository); TEST_JOBS, processes that run tests at a time (default 2); OWN_TESTS, set to 1 to run
fairseq's own tests instead (those of CHECKOUT/tests that need no network).
USAGE
    exit $(($# == 0 ? 2 : 0))
fi

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-$repo/.venv}
python=$(cd "$venv/bin" && pwd)/python
mkdir -p "${OUTPUT:-fairseq_versions}"
output=$(cd "${OUTPUT:-fairseq_versions}" && pwd)
read -ra tests <<<"${TESTS:-fairseq_compat/tests tests/unit/test_architectures.py tests/unit/test_decoding.py \
tests/unit/test_hooks.py tests/unit/test_embed_init.py tests/unit/test_translation_models.py tests/unit/test_tupe.py \
tests/unit/test_duo_transformer.py tests/unit/test_all_architectures.py tests/integration/test_architectures_training.py \
tests/integration/test_embed_init_training.py}"
export PATH=$venv/bin:$PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

for checkout in "$@"; do
    [[ -f $checkout/setup.py ]] || {
        echo "$checkout: no sources of fairseq (no setup.py)" >&2
        exit 2
    }
done

status=0
table=$(printf '%-24s %-8s %s' checkout version tests)
for checkout in "$@"; do
    checkout=$(cd "$checkout" && pwd)
    name=$(basename "$checkout")
    built=$output/$name
    [[ -f $built.done ]] || {
        echo "building $checkout"
        rm -rf "$built"  # of a build that did not end
        "$python" -m fairseq_compat install --source "$checkout" --target "$built" >"$built.build.log" 2>&1 ||
            { tail -n 20 "$built.build.log" >&2 && exit 1; }
        touch "$built.done"
    }
    export PYTHONPATH=$built
    "$python" -m fairseq_compat || true
    if [[ ${OWN_TESTS:-} == 1 ]]; then
        # their folder has a fairseq beside it, which was not built
        rm -rf "$built.tests"
        mkdir "$built.tests"
        cp -r "$checkout/tests" "$checkout/examples" "$checkout/scripts" "$built.tests/"
        (cd "$built.tests" && "$python" -m pytest tests --verbosity=0 -n "${TEST_JOBS:-2}" -k 'not xformers') >"$built.log" 2>&1 || true
    else
        (cd "$repo" && "$python" -m pytest "${tests[@]}" --verbosity=0 -n "${TEST_JOBS:-2}" --dist loadscope) >"$built.log" 2>&1 || status=1
    fi
    version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$built/fairseq/version.py")
    table+=$'\n'$(printf '%-24s %-8s %s' "$name" "$version" "$(grep -E '(passed|failed|error)' "$built.log" | tail -n 1)")
    grep -E '^(FAILED|ERROR)' "$built.log" || true
done
echo "$table"
exit $status
