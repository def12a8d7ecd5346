# The part of a Slurm job that is the same for all; launch.slurm puts the #SBATCH lines and the three
# variables before it: `checkout` (directory), `step_options` and `train` (arrays).
# shellcheck shell=bash disable=SC2154
set -uo pipefail
cd "$checkout" || exit 1
step=
out_of_time=no

# Slurm sends USR1 before the time limit (--signal), and TERM when the job is cancelled or pre-empted. Either way the
# training gets TERM and saves; only a job that ran out of time asks to be queued again. Slurm itself
# does that after a pre-emption or a lost node (--requeue), and a cancelled job has to stay cancelled.
# shellcheck disable=SC2329 # the traps call it
end() { if [ -n "$step" ]; then kill -TERM "$step" 2>/dev/null || true; fi; }
trap 'out_of_time=yes; end' USR1
trap end TERM

echo "$(date -u +%FT%TZ) job $SLURM_JOB_ID, start ${SLURM_RESTART_COUNT:-0}, on $SLURM_JOB_NODELIST"
srun "${step_options[@]}" "${train[@]}" &
step=$!
status=0
while :; do
  wait "$step"
  status=$?
  kill -0 "$step" 2>/dev/null || break # a signal ends a wait as well
done
if [ "$out_of_time" = yes ] && [ "$status" -eq 0 ]; then
  echo "$(date -u +%FT%TZ) saved before the time limit; queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
