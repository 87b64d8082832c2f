# Defines "stage", for .ci/run to source.

# Runs a command or function under a time limit: stage NAME LIMIT COMMAND [ARGUMENT...]. Prints the seconds that it took.
# If it fails, or is not done after LIMIT seconds, the whole script ends with exit code 1. Processes that it has left
# are ended after the limit.
stage() {
  local name=$1 limit=$2 start=$SECONDS command watch code=0
  shift 2
  echo "== $name"
  set -m # each background job has a process group of its own, which can be ended as a whole
  ("$@" || exit 1) </dev/null &
  command=$!
  (sleep "$limit" && echo "== $name has reached its limit of $limit s" && kill -TERM -- -$command && sleep 10 &&
    kill -KILL -- -$command) 2>/dev/null &
  watch=$!
  set +m
  trap 'kill -TERM -- -$command' INT TERM # the terminal interrupts this script, and not the group of the job
  wait $command || code=$?
  trap - INT TERM
  kill -TERM -- -$watch 2>/dev/null || true
  [ $code = 0 ] || { echo "== $name FAILED after $((SECONDS - start)) s"; exit 1; }
  echo "== $name took $((SECONDS - start)) s"
}
