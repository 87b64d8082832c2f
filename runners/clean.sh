#!/bin/sh
# Removes everything that the last job left: processes, files, shared memory and clock settings. Run as root between two
# jobs of a runner. All steps are tried. If a step fails, the exit code is 1, and the reason is on standard error.
#
#   REGBOT_RUNNER_USER   user of the jobs                           (regbot-runner)
#   REGBOT_RUNNER_WORK   folder that is emptied                     (/var/lib/regbot-runner/work)
#   REGBOT_RUNNER_TMP    folders where the user's files are removed (/tmp /var/tmp)
#   REGBOT_RUNNER_SHM    folder where the user's files are removed  (/dev/shm)
set -u
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=runners/sweep.sh
. "$here/sweep.sh"

user=$(user_id "${REGBOT_RUNNER_USER:-regbot-runner}") || exit 1
failed=0

if command -v crontab >/dev/null; then crontab -r -u "${REGBOT_RUNNER_USER:-regbot-runner}" 2>/dev/null; fi
end_processes "$user" || failed=1
empty "${REGBOT_RUNNER_WORK:-/var/lib/regbot-runner/work}" || failed=1
for folder in ${REGBOT_RUNNER_TMP:-/tmp /var/tmp} "${REGBOT_RUNNER_SHM:-/dev/shm}"; do
  remove_owned "$user" "$folder" || failed=1
done
remove_ipc "$user" || failed=1
"$here/clocks.sh" reset
exit "$failed"
