/* What sends and what ends packets: the same for every program that is measured. */
#include "bench.h"

/* Which source the next packet comes from. */
struct walk {
	/* Advances with every packet. */
	__u64 position;
	/* From how many sources; 2^32 at most, a power of two if all are to be new. */
	__u64 keys;
	/* ORDERLY, RANDOM or NEW. */
	__u32 order;
	/* The first IPv4 source. */
	__u32 first;
	/* For `send`: nanoseconds from one packet to the next, 0 for as fast as it goes. */
	__u64 interval;
	/* So late that what was missed is lost, in nanoseconds. */
	__u64 latest;
	/* When the next packet is due. */
	__u64 due;
	/* How many were sent. */
	__u64 sent;
	/* How often it ran before one was due. */
	__u64 waited;
	/* Every so many packets, one is from a polite source; 0 for none. */
	__u64 polite_every;
};

/* 172.16.0.1 is the first of so many. */
#define POLITE_FIRST 0xac100001
#define POLITE_SOURCES 50

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

/* What `send` writes before each packet: the memory of live frames is sent again as its receiver has left it. */
struct headers {
	__u16 are_renewed;
	/* Ethernet, IPv4 and TCP, without options. */
	__u8 bytes[54];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct headers);
} HEADERS SEC(".maps");

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
		/* Every one once, far apart from the one before: the factor is odd, and their number a power of two. */
		return (__u32)walk->position++ * 0x9e3779b1U & (walk->keys - 1);
	__u64 position = walk->position;

	walk->position = position + 1 < walk->keys ? position + 1 : 0;
	return position;
}

/* A checksum after a word of what it covers has changed: RFC 1624, equation 3. */
static ALWAYS_INLINE __u16 adjusted(__u16 checksum, __u32 before, __u32 after)
{
	__u32 sum = (__u16)~checksum + (__u16)~before + (__u16)~(before >> 16);

	sum += (__u16)after + (after >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Gives the packet the next source. The checksums of IPv4 and TCP are kept right, since the kernel looks at them. */
static ALWAYS_INLINE void take_a_source(struct xdp_md *context, struct walk *walk)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	struct iphdr *ipv4 = (void *)(ethernet + 1);
	struct ipv6hdr *ipv6 = (void *)(ethernet + 1);

	if ((void *)(ipv4 + 1) > end)
		return;
	if (ethernet->h_proto == ntohs(ETH_P_IP)) {
		__u32 source = walk->first + next_source(walk);

		if (walk->polite_every && walk->sent % walk->polite_every == 0)
			source = POLITE_FIRST + walk->sent / walk->polite_every % POLITE_SOURCES;
		source = htonl(source);
		struct tcphdr *tcp = (void *)(ipv4 + 1);

		if (ipv4->protocol == IPPROTO_TCP && (void *)(tcp + 1) <= end)
			tcp->check = adjusted(tcp->check, ipv4->saddr, source);
		ipv4->check = adjusted(ipv4->check, ipv4->saddr, source);
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

SEC("xdp.frags")
int pass(struct xdp_md *context)
{
	return XDP_PASS;
}

/* The same for traffic control: TC_ACT_SHOT. */
SEC("classifier")
int drop_by_tc(struct __sk_buff *context)
{
	return 2;
}

static ALWAYS_INLINE struct walk *the_walk(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&WALK, &zero);
}

/* A packet from the next source, handed to the program that is measured. */
SEC("xdp.frags")
int generate(struct xdp_md *context)
{
	struct walk *walk = the_walk();

	if (!walk)
		return XDP_ABORTED;
	take_a_source(context, walk);
	bpf_tail_call(context, &NEXT, 0);
	return XDP_ABORTED;
}

static ALWAYS_INLINE void renew(struct xdp_md *context)
{
	__u32 zero = 0;
	struct headers *headers = bpf_map_lookup_elem(&HEADERS, &zero);
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;

	if (headers && headers->are_renewed && data + sizeof(headers->bytes) <= end)
		__builtin_memcpy(data, headers->bytes, sizeof(headers->bytes));
}

/* A packet from the next source, sent if it is due. */
SEC("xdp")
int send(struct xdp_md *context)
{
	struct walk *walk = the_walk();

	if (!walk)
		return XDP_ABORTED;
	if (walk->interval) {
		__u64 now = bpf_ktime_get_ns();

		if (now < walk->due) {
			walk->waited++;
			return XDP_DROP;
		}
		walk->due = (now - walk->due > walk->latest ? now - walk->latest : walk->due) + walk->interval;
	}
	walk->sent++;
	renew(context);
	take_a_source(context, walk);
	return bpf_redirect(INTERFACE, 0);
}
