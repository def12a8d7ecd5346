#!/usr/bin/env bash
# What an XPK workload runs in each of its containers: install, then train.
#   container.sh ARGUMENT...      the arguments of launch.local
# A pod that has to go gets SIGTERM. The training then saves and exits 0, which Kubernetes would take for the end of
# the work; 143 makes XPK's restart policy start it again, and it continues from its checkpoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
child=
told=no

# shellcheck disable=SC2329 # the trap calls it
end() {
  told=yes
  if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi
}

trap end TERM
python3 -m pip install --quiet --root-user-action=ignore --constraint=constraints.txt --editable='.[tpu]'
if [ "$told" = yes ]; then exit 143; fi
python3 -m launch.local "$@" &
child=$!
status=0
while :; do
  wait "$child" && status=0 || status=$?
  kill -0 "$child" 2>/dev/null || break # a signal ends a wait as well
done
if [ "$told" = yes ] && [ "$status" -eq 0 ]; then exit 143; fi
exit "$status"
