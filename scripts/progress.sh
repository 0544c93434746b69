# shellcheck shell=bash
# To be sourced. alive TEXT COMMAND...: runs a command, and as long as it runs says every ten seconds on standard error that
# it does. Its exit status is the command's. (The shell itself waits: a `sleep` would outlive a command that is killed.)
alive() {
  local text=$1 pulse status=0 begin=$SECONDS
  while read -rt "${PULSE:-10}" _ || [[ $? -gt 128 ]]; do
    kill -0 $$ 2>/dev/null || break
    echo "$text: $((SECONDS - begin)) s" >&2
  done <> <(:) &
  pulse=$!
  "${@:2}" || status=$?
  kill "$pulse" 2>/dev/null || true
  wait "$pulse" 2>/dev/null || true
  return "$status"
}
