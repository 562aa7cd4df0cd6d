/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types and kfuncs in use, kept by hand: CO-RE finds the fields
 * in the running kernel's BTF, so a build does not depend on the builder's
 * kernel. UAPI headers give the rest.
 */
#ifndef GW_KERNEL_H
#define GW_KERNEL_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* include/linux/skbuff.h */
#define GW_CHECKSUM_UNNECESSARY 1
#define GW_CHECKSUM_COMPLETE 2
#define GW_CHECKSUM_PARTIAL 3

struct sk_buff {
	__u32 csum;
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

/* include/net/tcp.h, Linux 6.9 */
struct bpf_tcp_req_attrs {
	__u32 rcv_tsval;
	__u32 rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale;
	__u8 snd_wscale;
	__u8 ecn_ok;
	__u8 wscale_ok;
	__u8 sack_ok;
	__u8 tstamp_ok;
	__u8 usec_ts_ok;
	__u8 reserved[3];
};

struct net {
	__u64 net_cookie;
} __attribute__((preserve_access_index));

/* include/net/net_namespace.h: possible_net_t */
struct gw_possible_net {
	struct net *net;
} __attribute__((preserve_access_index));

/* include/net/sock.h */
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_ipv6only : 1;
	struct gw_possible_net skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	__u32 skc_tw_rcv_nxt;
} __attribute__((preserve_access_index));

/* include/net/sock_reuseport.h */
struct sock_reuseport {
	__u16 num_socks;
} __attribute__((preserve_access_index));

/* socket_lock_t: a process is at work on the socket, and segments wait for it */
struct sock_lock {
	int owned;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	struct sock_lock sk_lock;
	struct sock_reuseport *sk_reuseport_cb;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

/* include/net/inet_timewait_sock.h, include/linux/tcp.h */

struct inet_timewait_sock {
	struct sock_common __tw_common;
} __attribute__((preserve_access_index));

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
} __attribute__((preserve_access_index));

/* include/linux/tcp.h: what a listener remembers of a SYN */
struct tcp_request_sock {
	__u32 rcv_nxt;
} __attribute__((preserve_access_index));

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *s, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;
extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;

/* include/net/tcp_states.h */
#define GW_TCP_LISTEN 10
#define GW_TCP_TIME_WAIT 6

/* include/uapi/linux/if_packet.h */
#define GW_PACKET_HOST 0
#define GW_PACKET_MULTICAST 2
#define GW_PACKET_OTHERHOST 3

#endif /* GW_KERNEL_H */
