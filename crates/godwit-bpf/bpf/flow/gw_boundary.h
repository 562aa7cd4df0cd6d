/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a request begins (GW_LOG_MODE_REQUEST). Input that comes when the client
 * has all that was sent may be a request, or was sent ahead while the reply to the
 * last one pauses: a twin that began there would say the wrong reply. The first
 * output behind it tells. A server that answers one request after the other has
 * read the next one only when the last reply is whole; so if it has not read all,
 * this is still the last reply. Of one that reads ahead nobody can tell:
 * docs/configuration.md says that.
 */
#ifndef GW_BOUNDARY_H
#define GW_BOUNDARY_H

#include "flow/gw_flow.h"
#include "flow/gw_window.h"

/* Has our server read all that has come, the marked request at least? */
static __always_inline bool gw_has_read_all(struct __sk_buff *skb,
					    const struct gw_flow *f)
{
	struct bpf_sock *sk = skb->sk;
	const struct tcp_sock *tp;

	if (!sk)
		return false;
	tp = (const struct tcp_sock *)bpf_skc_to_tcp_sock(sk);
	return tp && tp->copied_seq == tp->rcv_nxt &&
	       gw_after(tp->copied_seq, f->log.mark);
}

/* New output of our server: the log begins at the mark, or goes on. */
static __noinline void gw_log_settle(struct __sk_buff *skb,
				     const struct gw_flow_key *key,
				     struct gw_flow *f)
{
	struct gw_log_key k = { .flow = *key, .irs = f->irs };
	bool begins = gw_has_read_all(skb, f);
	__u32 base = f->log.base;

	f->log.is_marked = 0;
	if (f->log.state == GW_LOG_BEGUN) {
		if (begins)
			f->log.state = GW_LOG_KEPT;
		else
			gw_log_free(key, f, GW_LOG_OVER);
		return;
	}
	/* while a twin is made of it, it stays */
	if (!begins || f->log.state != GW_LOG_KEPT ||
	    f->phase == GW_PHASE_REJOINING ||
	    gw_before(f->log.end, f->log.mark))
		return;
	f->log.base = f->log.mark;
	f->log.base_ack = f->log.mark_ack;
	f->log.bytes_out = f->log.mark_out;
	gw_log_trim(&k, f, base, f->log.mark);
}

#endif /* GW_BOUNDARY_H */
