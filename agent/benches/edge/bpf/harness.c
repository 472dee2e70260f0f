/* What sends and what ends packets: the same for every program that is measured. */
#include "bench.h"

/* Which source the next packet comes from. */
struct walk {
	/* Advances with every packet. */
	__u64 position;
	/* From how many sources; 2^32 at most. */
	__u64 keys;
	/* ORDERLY, RANDOM or NEW. */
	__u32 order;
	/* The first IPv4 source. */
	__u32 first;
};

enum { ORDERLY, RANDOM, NEW };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk);
} WALK SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} NEXT SEC(".maps");

/* Where `send` sends to. */
const volatile __u32 INTERFACE = 0;

static ALWAYS_INLINE __u32 next_source(struct walk *walk)
{
	if (walk->order == RANDOM) {
		/* The generator of Knuth's MMIX; its upper bits are the good ones. */
		walk->position = walk->position * 6364136223846793005ULL + 1442695040888963407ULL;
		return ((walk->position >> 32) * walk->keys) >> 32;
	}
	if (walk->order == NEW)
		/* Every one of 2^32 once, far apart from the one before: the factor is odd. */
		return (__u32)walk->position++ * 0x9e3779b1U;
	__u64 position = walk->position;

	walk->position = position + 1 < walk->keys ? position + 1 : 0;
	return position;
}

/* Gives the packet the next source. IPv4's checksum is kept right, since the kernel looks at it. */
static ALWAYS_INLINE void take_a_source(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ipv4 = (void *)(ethernet + 1);
	struct ipv6hdr *ipv6 = (void *)(ethernet + 1);
	__u32 zero = 0;
	struct walk *walk = bpf_map_lookup_elem(&WALK, &zero);

	if (!walk || (void *)(ipv4 + 1) > end)
		return;
	if (ethernet->h_proto == ntohs(ETH_P_IP)) {
		__u32 source = htonl(walk->first + next_source(walk));
		/* RFC 1624, equation 3. */
		__u32 sum = (__u16)~ipv4->check + (__u16)~ipv4->saddr + (__u16)~(ipv4->saddr >> 16);

		sum += (__u16)source + (source >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		ipv4->check = ~sum;
		ipv4->saddr = source;
	} else if (ethernet->h_proto == ntohs(ETH_P_IPV6) && (void *)(ipv6 + 1) <= end) {
		ipv6->saddr.in6_u.u6_addr32[1] = htonl(next_source(walk));
	}
}

SEC("xdp.frags")
int drop(struct xdp_md *context)
{
	return XDP_DROP;
}

/* The same for traffic control: TC_ACT_SHOT. */
SEC("classifier")
int drop_by_tc(struct __sk_buff *context)
{
	return 2;
}

/* A packet from the next source, handed to the program that is measured. */
SEC("xdp.frags")
int generate(struct xdp_md *context)
{
	take_a_source(context);
	bpf_tail_call(context, &NEXT, 0);
	return XDP_ABORTED;
}

/* A packet from the next source, sent. */
SEC("xdp")
int send(struct xdp_md *context)
{
	take_a_source(context);
	return bpf_redirect(INTERFACE, 0);
}
