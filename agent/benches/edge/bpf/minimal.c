/*
 * What a limit costs at the least, as a good C programmer would write it: parse, look the source up in the kernel's LRU
 * hash, one compare-and-swap, one counter. No VLAN tags, no extension headers, no classes, nobody exempt, one limit,
 * nothing to be seen but two numbers.
 */
#include "bench.h"

#define TRIES 8

enum { PASSED, REFUSED };

/* A generic cell rate: one packet each EMISSION_NS, TOLERANCE_NS ahead of that at most. Written when it is loaded. */
const volatile __u64 EMISSION_NS = 1000000;
const volatile __u64 TOLERANCE_NS = 1000000000;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	/* As many as anybody has to remember, with some room: it evicts before it is full. */
	__uint(max_entries, 1048576);
	__type(key, __u64);
	__type(value, __u64);
} SOURCES SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} COUNTERS SEC(".maps");

static ALWAYS_INLINE int count(__u32 outcome)
{
	__u64 *counter = bpf_map_lookup_elem(&COUNTERS, &outcome);

	if (counter)
		++*counter;
	return outcome == PASSED ? XDP_PASS : XDP_DROP;
}

static ALWAYS_INLINE int limit(__u64 source)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 *arrival = bpf_map_lookup_elem(&SOURCES, &source);

	if (!arrival) {
		__u64 first = now + EMISSION_NS;

		bpf_map_update_elem(&SOURCES, &source, &first, BPF_NOEXIST);
		return count(PASSED);
	}
	for (int try = 0; try < TRIES; try++) {
		__u64 seen = *(volatile __u64 *)arrival;
		__u64 from = seen > now ? seen : now;

		if (from - now > TOLERANCE_NS)
			return count(REFUSED);
		if (__sync_val_compare_and_swap(arrival, seen, from + EMISSION_NS) == seen)
			return count(PASSED);
	}
	return count(REFUSED);
}

SEC("xdp.frags")
int minimal(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (ethernet->h_proto == ntohs(ETH_P_IP)) {
		struct iphdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		/* No unicast prefix of IPv6 looks like this. */
		return limit(0xffff00000000ULL | ip->saddr);
	}
	if (ethernet->h_proto == ntohs(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(ethernet + 1);

		if ((void *)(ip + 1) > end)
			return XDP_DROP;
		/* A site's /64. */
		return limit((__u64)ip->saddr.in6_u.u6_addr32[1] << 32 | ip->saddr.in6_u.u6_addr32[0]);
	}
	return XDP_PASS;
}
