#!/bin/sh
# Leave nothing of the last job behind: processes, files, shared memory, clocks. As root, between two jobs of a runner.
# Every step is tried; the exit code is 1 where one could not be done, and the reason stands on standard error.
#
#   REGBOT_RUNNER_USER   whose jobs these were         (regbot-runner)
#   REGBOT_RUNNER_WORK   emptied                       (/var/lib/regbot-runner/work)
#   REGBOT_RUNNER_TMP    searched for his files        (/tmp /var/tmp)
#   REGBOT_RUNNER_SHM    searched for his files        (/dev/shm)
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
