# Defines "stage", for .ci/run to source.

# Runs a command or function under a time limit: stage NAME LIMIT COMMAND [ARGUMENT...]. Prints the seconds that it took.
# If it fails, or is not done after LIMIT seconds, its processes are ended and the whole script ends with exit code 1.
stage() {
  local name=$1 limit=$2 start=$SECONDS command watch code=0
  shift 2
  echo "== $name"
  set -m # each background job has a process group of its own, which can be ended as a whole
  ("$@" || exit 1) </dev/null &
  command=$!
  (sleep "$limit" && echo "== $name has reached its limit of $limit s" && kill -TERM -- -$command) 2>/dev/null &
  watch=$!
  set +m
  trap 'kill -TERM -- -$command' HUP INT TERM # a terminal signals this script, and not the group of the job
  wait $command || code=$?
  trap - HUP INT TERM
  kill -TERM -- -$watch 2>/dev/null || true
  if [ $code != 0 ]; then
    echo "== $name FAILED after $((SECONDS - start)) s"
    kill -TERM -- -$command 2>/dev/null && sleep 2 && kill -KILL -- -$command 2>/dev/null
    exit 1
  fi
  echo "== $name took $((SECONDS - start)) s"
}
