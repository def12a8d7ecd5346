#!/usr/bin/env bash
# What launch.tpu_pod runs on every worker of a slice, from the folder that it is copied to:
#   worker.sh unpack                  put the code of code.tar.gz in place
#   worker.sh install                 Python 3.11 and the packages, pinned by constraints.txt
#   worker.sh mount BUCKET            a Cloud Storage bucket under buckets/BUCKET, with gcsfuse
#   worker.sh start COMMAND...        run the training detached from this connection, in the code's folder
#   worker.sh follow                  its log until it ends
#   worker.sh result                  one line: running, none, lost, or its exit status
#   worker.sh stop SECONDS            SIGTERM, and SIGKILL for what is still there after so many seconds
# gcloud repeats a command whose connection broke (exit status 255), so each may run twice.
set -euo pipefail
base="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
run="$base/run"

die() {
  echo "$(hostname): $1" >&2
  exit 1
}

# The supervisor holds this lock as long as the training lives. A pid alone could be another process by now.
running() { [ -e "$run/lock" ] && ! flock --nonblock "$run/lock" true; }

unpack() {
  if running; then die "a training is running; its code is left alone (stop it first, or follow it)"; fi
  rm -rf "$base/code.new"
  mkdir "$base/code.new"
  tar -xzf "$base/code.tar.gz" -C "$base/code.new"
  rm -rf "$base/code"
  mv "$base/code.new" "$base/code"
}

install_packages() {
  local stamp="$base/installed" wanted
  wanted="$(cd "$base/code" && cat pyproject.toml constraints.txt | sha256sum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    echo "$(hostname): installed already"
    return
  fi
  # The images of TPU VMs have an older Python, so uv brings the one that constraints.txt is for.
  python3 -m pip install --quiet --upgrade --target="$base/uv" --constraint="$base/code/constraints.txt" uv
  rm -rf "$base/venv"
  "$base/uv/bin/uv" venv --quiet --python=3.11 "$base/venv"
  "$base/uv/bin/uv" pip install --quiet --python="$base/venv/bin/python" \
    --constraint="$base/code/constraints.txt" --editable="$base/code[tpu]"
  echo "$wanted" >"$stamp"
  echo "$(hostname): installed"
}

mount_bucket() {
  local folder="$base/buckets/$1"
  command -v gcsfuse >/dev/null || die "gcsfuse is not installed, so gs://$1 cannot be the workdir; \
install it on the workers, or give --workdir a path of storage that they share"
  mkdir -p "$folder"
  # Checkpoints are put in place by renaming a folder, which gcsfuse refuses without a limit.
  mountpoint --quiet "$folder" || gcsfuse --implicit-dirs --rename-dir-limit=1000000 "$1" "$folder"
}

start() {
  local asked
  mkdir -p "$run"
  asked="$(printf '%q ' "$@")"
  if running; then
    [ "$(cat "$run/command")" = "$asked" ] || die "another training is running: $(cat "$run/command")"
    echo "$(hostname): running already"
    return
  fi
  rm -f "$run/exit" "$run/pid"
  if [ -f "$run/log" ]; then mv "$run/log" "$run/log.$(date -u +%Y%m%dT%H%M%SZ)"; fi
  echo "$asked" >"$run/command"
  : >"$run/log"
  setsid bash "$base/worker.sh" supervise "$@" </dev/null >>"$run/supervisor.log" 2>&1 &
  for _ in $(seq 100); do
    if [ -s "$run/pid" ]; then
      echo "$(hostname): started, log in $run/log"
      return
    fi
    sleep 0.1
  done
  die "the training did not start: $(tail -n 5 "$run/supervisor.log")"
}

supervise() {
  local child status=0
  exec 9>"$run/lock"
  flock --nonblock 9 || die "another training holds $run/lock"
  # A machine that shuts down signals everything; the training saves then, and its status is still written.
  # Caught and not ignored: what is ignored here would be ignored by the training.
  trap : TERM HUP
  cd "$base/code"
  "$@" >>"$run/log" 2>&1 9>&- &
  child=$!
  echo "$child" >"$run/pid"
  while :; do
    wait "$child" && status=0 || status=$?
    kill -0 "$child" 2>/dev/null || break # a signal ends a wait as well
  done
  echo "$status" >"$run/exit.new"
  mv "$run/exit.new" "$run/exit"
}

follow() {
  [ -f "$run/log" ] || die "nothing was started here"
  tail -n 1000 -f "$run/log" &
  reader=$! # global: the trap outlives this function, and a tail that is left keeps the connection open
  trap 'kill "$reader" 2>/dev/null || true' EXIT
  while running; do sleep 1; done
  sleep 0.5 # the last lines
}

result() {
  local state=none
  if running; then
    state=running
  elif [ -f "$run/exit" ]; then
    state="$(cat "$run/exit")"
  elif [ -f "$run/command" ]; then
    state=lost # the machine went down with the training
  fi
  echo "vict_jax $(hostname) $state"
}

stop() {
  if running; then
    kill -TERM "$(cat "$run/pid")" 2>/dev/null || true
    for _ in $(seq "$1"); do
      running || break
      sleep 1
    done
    if running; then
      echo "$(hostname): still running after $1 s, killed" >&2
      kill -KILL "$(cat "$run/pid")" 2>/dev/null || true
      sleep 1
    fi
  fi
  result
}

action="${1:-}"
shift || true
case "$action" in
  unpack) unpack ;;
  install) install_packages ;;
  mount) mount_bucket "$1" ;;
  start) start "$@" ;;
  supervise) supervise "$@" ;;
  follow) follow ;;
  result) result ;;
  stop) stop "$1" ;;
  *) die "unknown action '$action'" ;;
esac
