# Network namespaces as hosts on one bridge, for scripts to source: new_host, new_bridge, join, on, begin, wait_for. Whatever happens, nothing is left behind.

tag=tg$$
work=$(mktemp -d)
pids=()
hosts=()

remove() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill -CONT "$pid" 2> /dev/null || true; kill -KILL "$pid" 2> /dev/null || true; done
  wait 2> /dev/null || true
  for host in "${hosts[@]}"; do ip netns delete "$tag-$host" 2> /dev/null || true; done
  rm -rf "$work"
  exit "$code"
}
trap remove EXIT
trap 'exit 130' INT TERM

new_host() { # NAME: a namespace of that name with loopback
  ip netns add "$tag-$1"
  hosts+=("$1")
  ip -n "$tag-$1" link set lo up
}

new_bridge() { # to which hosts join, in a namespace of its own
  new_host net
  ip -n "$tag-net" link add bridge type bridge
  ip -n "$tag-net" link set bridge up
}

join() { # NAME ADDRESS: to the bridge
  new_host "$1"
  ip link add eth0 netns "$tag-$1" type veth peer name "to-$1" netns "$tag-net"
  ip -n "$tag-$1" addr add "$2/24" dev eth0
  ip -n "$tag-$1" link set eth0 up
  ip -n "$tag-net" link set "to-$1" master bridge up
}

on() { local host=$1; shift; ip netns exec "$tag-$host" "$@"; }

begin() { # NAME HOST COMMAND…: in the background; its output is in $work/NAME, and its process in the variable begun
  local name=$1 host=$2; shift 2
  # exec, so that the process is the program itself
  ip netns exec "$tag-$host" "$@" > "$work/$name" 2>&1 &
  begun=$!
  pids+=("$begun")
}

wait_for() { # FILE TEXT
  for _ in $(seq 1200); do grep -q "$2" "$work/$1" 2> /dev/null && return; sleep 0.1; done
  echo "$1 does not say \"$2\":" >&2; cat "$work/$1" >&2; exit 1
}
