#!/bin/sh
# Tries a release's archive where there is BusyBox and nothing else: its limit is enforced, by source; it stays without its
# agent, the next agent goes on with it, and a detach leaves nothing. Counts are exact: an hour refills one packet.
set -eu
config=/etc/weir/limits.toml
server=10.77.0.1
other=10.77.0.2
greedy=10.77.0.3
burst=5
sent=20
# An emulated machine takes seconds for what takes milliseconds.
patience=120
compared=0

fail() {
    echo "failed: $*"
    weir status 2>&1 || true
    cat /tmp/weir.log
    exit 1
}

equals() {
    [ "$2" = "$3" ] || fail "$1: expected $2, got $3"
    echo "$1: $3"
    compared=$((compared + 1))
}

# Runs a command until it succeeds.
wait_for() {
    waited=0
    until "$@" > /dev/null 2>&1; do
        waited=$((waited + 1))
        [ $waited -lt $((patience * 10)) ] || fail "not within $patience s: $*"
        usleep 100000
    done
}

# Sends echo requests from an address of the client. Those that are refused have no reply.
send() {
    nsenter -t $client -n ping -q -c $sent -i 0.1 -W 1 -I "$1" $server > /dev/null || true
}

# Echo requests that the host's kernel received, after Weir.
received() {
    awk '$1 == "Icmp:" && !names { split($0, name); names = 1; next }
        $1 == "Icmp:" { for (n in name) if (name[n] == "InEchos") print $n }' /proc/net/snmp
}

# Packets of the one limit that `passed` or that are `throttled`.
counted() {
    weir limits --json | tr -d ' \n' | sed "s/.*\"$1\":{\"packets\":\([0-9]*\).*/\1/"
}

are_counted() {
    [ $(($(counted passed) + $(counted throttled))) -ge "$1" ]
}

is_in_another_network() {
    [ "$(readlink /proc/self/ns/net)" != "$(readlink /proc/$client/ns/net)" ]
}

start_agent() {
    weir --config $config >> /tmp/weir.log 2>&1 &
    agent=$!
    wait_for weir status
}

stop_agent() {
    kill -TERM $agent
    wait $agent || fail "the agent ended with $?"
}

# What the guest has.
libraries=$(find / -xdev -name '*.so*' | head)
equals "shared libraries" "" "$libraries"
equals "programs" "/bin/busybox" "$(find /bin /sbin /usr /lib -type f 2>/dev/null)"

# As docs/start/install.md has it.
cd /tmp
tar xzf /release.tar.gz
mkdir -p /usr/bin /etc/weir
cp weir-*-linux-musl/weir /usr/bin/weir
weir --version
cat > $config << END
[agent]
interfaces = ["weir0"]
max_sources = 1_000

[[limit]]
name = "echo"
protocol = "icmp"
rate = "1/h"
burst = $burst
END
: > /tmp/weir.log
weir check $config

# The host's interface, and its peer in another network.
# The guest ends once nobody writes any more.
unshare -n sleep 100000 > /dev/null 2>&1 &
client=$!
wait_for is_in_another_network
ip link add weir0 type veth
ip addr add $server/24 dev weir0
ip link set weir0 up
ip link set veth0 netns $client
for address in $other $greedy; do
    nsenter -t $client -n ip addr add $address/24 dev veth0
done
nsenter -t $client -n ip link set veth0 up
weir doctor --config $config

before=$(received)
send $greedy
equals "received of $sent without a limit" $sent $(($(received) - before))

start_agent
before=$(received)
send $greedy
wait_for are_counted $sent
equals "received of $sent with a limit of $burst" $burst $(($(received) - before))
equals "passed" $burst "$(counted passed)"
equals "refused" $((sent - burst)) "$(counted throttled)"
before=$(received)
send $other
wait_for are_counted $((2 * sent))
equals "received of $sent from another source" $burst $(($(received) - before))
weir status
weir limits

stop_agent
before=$(received)
send $greedy
equals "received of $sent after the agent's end" 0 $(($(received) - before))
start_agent
wait_for are_counted $((3 * sent))
equals "refused, as the next agent counts" $((3 * sent - 2 * burst)) "$(counted throttled)"

stop_agent
weir detach
equals "pins after the detach" "" "$(ls -A /sys/fs/bpf)"
before=$(received)
send $greedy
equals "received of $sent after the detach" $sent $(($(received) - before))
echo "tried: $compared comparisons"
