/* What the benchmark's programs need of the kernel, without libbpf's headers. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define ntohs(value) __builtin_bswap16(value)
#define htonl(value) __builtin_bswap32(value)

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
                                         __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*const bpf_tail_call)(void *context, void *map, __u32 index) = (void *)BPF_FUNC_tail_call;
static long (*const bpf_redirect)(__u32 interface, __u64 flags) = (void *)BPF_FUNC_redirect;

char LICENSE[] SEC("license") = "GPL";
