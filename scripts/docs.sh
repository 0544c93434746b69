#!/usr/bin/env bash
# Makes the site of the documentation in the folder site/, links checked: a broken one is an error.
#
#   bash scripts/docs.sh            # site/index.html
#   bash scripts/docs.sh serve      # on localhost, again with every change
#
# Its tools go into a virtual environment of their own, .venv-docs (DOCS_VENV names another one).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${DOCS_VENV:-.venv-docs}
if [[ ! -x $venv/bin/mkdocs ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" --quiet --disable-pip-version-check install "mkdocs<2" "mkdocs-material<10" "mkdocstrings[python]"
fi
export NO_MKDOCS_2_WARNING=1
if [[ ${1:-} == serve ]]; then exec "$venv/bin/mkdocs" serve; fi
exec "$venv/bin/mkdocs" build --strict --site-dir site # with --quiet, warnings would be no errors
