/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers behind a director that stand by for each other in a ring: each owns a share of
 * a service, and has the twins of the server before it, whose share is its ward. Both have
 * one address and port. What a segment belongs to is what its connection belongs to; where
 * none is known here yet, who has sent the frame tells.
 */
#ifndef GW_WARD_H
#define GW_WARD_H

#include "flow/gw_handshake.h"
#include "net/gw_hops.h"
#include "policy/gw_rules.h"
#include "request/gw_slip.h"
#include "request/gw_transfer.h"

#define GW_NO_SHARE (~0u)

/* For so long a director may send us what another server has taken over. */
#define GW_FORGOTTEN_NS 2000000000ull

/*
 * A server that loses its own share and its ward at once forgets the connections of both,
 * and two servers take over. Until the director knows, it is to go on to the right one:
 * the other one's kernel would reset it.
 */
static __always_inline void gw_note_forgotten(const struct gw_flow_key *key,
					      __u32 share)
{
	const struct gw_share *s = gw_share_at(share);
	struct gw_forgotten fresh = { .ns = gw_now(), .share = share };

	if (s && s->role != GW_ROLE_OWNER &&
	    bpf_map_lookup_elem(&gw_wards, &key->service))
		bpf_map_update_elem(&gw_forgotten, key, &fresh, BPF_ANY);
}

static __always_inline __u32 gw_forgotten_share(const struct gw_flow_key *key)
{
	const struct gw_forgotten *old =
		bpf_map_lookup_elem(&gw_forgotten, key);

	return old && gw_now() - old->ns < GW_FORGOTTEN_NS ? old->share :
							     GW_NO_SHARE;
}

/* The share of the connection, or of its handshake. */
static __noinline __u32 gw_known_share(const struct gw_flow_key *key,
				       const struct gw_pkt *p)
{
	const struct gw_half_open *half =
		bpf_map_lookup_elem(&gw_half_open, key);
	const struct gw_flow *f = bpf_map_lookup_elem(&gw_flows, key);
	bool answer = (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) ==
			      (GW_TCP_SYN | GW_TCP_ACK) &&
		      half && p->ack == half->irs + 1;

	if (half && (!f || gw_is_over(f) || answer))
		return half->share;
	return f ? f->share : gw_forgotten_share(key);
}

/* Is it this server's own share, whoever owns it, and not its ward? */
static __always_inline bool gw_is_home(const struct gw_flow_key *key,
				       __u32 share)
{
	const __u32 *home = bpf_map_lookup_elem(&gw_services, &key->service);

	return home && *home == share &&
	       bpf_map_lookup_elem(&gw_wards, &key->service);
}

/* Are there only two servers, of which each is the other's standby? */
static __always_inline bool gw_is_pair(__u32 home, __u32 ward)
{
	const struct gw_share *s = gw_share_at(home), *w = gw_share_at(ward);

	return s && w && gw_mac_equal(s->peer_mac, w->peer_mac);
}

/* The same of a service. */
static __always_inline bool gw_is_of_pair(const struct gw_flow_key *key)
{
	const __u32 *home = bpf_map_lookup_elem(&gw_services, &key->service);
	const __u32 *ward = bpf_map_lookup_elem(&gw_wards, &key->service);

	return home && ward && gw_is_pair(*home, *ward);
}

/* The share whose owner has sent it to us as its standby. */
static __always_inline __u32 gw_share_tapped(const struct gw_pkt *p, __u32 home,
					     __u32 ward)
{
	const struct gw_share *s = gw_share_at(home);

	/* another one has taken over our own */
	return s && s->role == GW_ROLE_SHADOW &&
			       gw_mac_equal(p->smac, s->peer_mac) ?
		       home :
		       ward;
}

/* Is our own share another one's, while we own another's? That is where we begin then. */
static __always_inline bool gw_is_homeless(__u32 home, __u32 ward)
{
	const struct gw_share *s = gw_share_at(home), *w = gw_share_at(ward);

	return s && w && s->role == GW_ROLE_SHADOW && w->role == GW_ROLE_OWNER;
}

/*
 * Where a connection begins of which a copy, or its client's SYN itself, is here. An owner
 * begins in its own share, and in its ward only without that. A server that has lost its
 * own to us sends on what a director means for that share: there it begins, where the
 * director will look for it. Of two servers the other one's copies can't be told from
 * that: it begins in our own, and the director is told (gw_forward_front).
 */
static __always_inline __u32 gw_share_of_syn(const struct gw_pkt *p, __u32 home,
					     __u32 ward, bool tapped)
{
	const struct gw_share *w = gw_share_at(ward);

	if (tapped && gw_is_pair(home, ward))
		return w && w->role == GW_ROLE_OWNER ? home : ward;
	if (gw_share_tapped(p, home, ward) == home)
		return home;
	return tapped || gw_is_homeless(home, ward) ? ward : home;
}

/* Has a connection gone from here of which nothing else is known? */
static __always_inline bool gw_has_gone(const struct gw_flow_key *key)
{
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	if (!t)
		return bpf_map_lookup_elem(&gw_passed, key);
	return t->state == GW_TRANSFER_GONE || t->state == GW_TRANSFER_ASKED;
}

/*
 * Is it a copy that the owner of our ward mirrors, and not what it sends on? If its client has
 * sent it with few hops that can't be told from these. Then it is a copy if that owner has
 * mirrored the SYN of another connection than the one that has gone.
 */
static __always_inline bool gw_is_copy(struct __sk_buff *skb,
				       const struct gw_pkt *p,
				       const struct gw_flow_key *key,
				       __u32 ward)
{
	const struct gw_half_open *half =
		bpf_map_lookup_elem(&gw_half_open, key);
	const struct gw_passed *passed = bpf_map_lookup_elem(&gw_passed, key);
	const struct gw_transfer *t = bpf_map_lookup_elem(&gw_transfers, key);

	if (gw_is_first_hand(skb, p))
		return true;
	return half && half->share == ward && (!t || t->irs != half->irs) &&
	       (!passed || passed->irs != half->irs);
}

/*
 * Which share a frame with a slip is about; GW_NO_SHARE: it has none. What is said to this
 * node is said to it as a server of its own; what is only to go by it, to a standby.
 */
static __noinline __u32 gw_share_of_slip(struct __sk_buff *skb,
					 const struct gw_pkt *p, __u32 home,
					 __u32 ward)
{
	const struct gw_placing *pl = gw_placing_of(home);
	struct gw_flow_key key;
	struct gw_slip slip;
	__u32 share;
	__be32 self;

	if (!pl || !gw_is_mate(p->smac) || gw_read_slip(skb, p, &slip))
		return GW_NO_SHARE;
	self = gw_node_id(pl->node);
	if (slip.kind == GW_SLIP_TWIN)
		return gw_share_tapped(p, home, ward);
	if (slip.kind == GW_SLIP_ASK)
		return slip.from && slip.to != self ?
			       gw_share_tapped(p, home, ward) :
			       home;
	/* to whom has taken over what the sender means; who tells it is no twin's owner */
	if (slip.kind == GW_SLIP_BEGIN)
		return gw_is_homeless(home, ward) ? ward : home;
	gw_key(&key, &p->src, &p->dst);
	share = gw_known_share(&key, p);
	if (share == home || share == ward)
		return share;
	return slip.from && slip.from != self && slip.to != self ? ward : home;
}

/* Verified once: as a global function, not with all that may come of it. */
__noinline __u32 gw_choose_share(struct __sk_buff *skb, const struct gw_pkt *p,
				 __u32 home, __u32 ward)
{
	const struct gw_share *w = gw_share_at(ward);
	const struct gw_half_open *half;
	__u32 share;
	struct gw_flow_key key;
	bool tapped;

	if (!p)
		return home;
	share = gw_share_of_slip(skb, p, home, ward);
	if (share != GW_NO_SHARE)
		return share;
	/* whether we have twins of it now or not */
	tapped = w && gw_mac_equal(p->smac, w->peer_mac);
	/* what an owner passes on to be begun has a slip */
	if ((p->flags & (GW_TCP_SYN | GW_TCP_ACK)) == GW_TCP_SYN)
		return gw_share_of_syn(p, home, ward, tapped);
	gw_key(&key, &p->src, &p->dst);
	half = gw_completed(p, &key);
	if (half && (half->share == home || half->share == ward))
		return half->share;
	if (!bpf_map_lookup_elem(&gw_flows, &key) && gw_has_gone(&key) &&
	    !(tapped && gw_is_copy(skb, p, &key, ward)))
		return home;
	share = gw_known_share(&key, p);
	if (share == home || share == ward)
		return share;
	return tapped ? ward : home;
}

/* The share of a client's segment, or GW_NO_SHARE. */
static __noinline __u32 gw_share_in(struct __sk_buff *skb,
				    const struct gw_pkt *p)
{
	__u32 *home = bpf_map_lookup_elem(&gw_services, &p->dst), *ward;

	if (!home)
		return GW_NO_SHARE;
	ward = bpf_map_lookup_elem(&gw_wards, &p->dst);
	return ward ? gw_choose_share(skb, p, *home, *ward) : *home;
}

/* The share of what is said in a service's own name, here or by a peer. */
static __noinline __u32 gw_share_out(const struct gw_pkt *p)
{
	__u32 *home = bpf_map_lookup_elem(&gw_services, &p->src), *ward, share;
	const struct gw_share *w;
	struct gw_flow_key key;

	if (!home)
		return GW_NO_SHARE;
	ward = bpf_map_lookup_elem(&gw_wards, &p->src);
	if (!ward)
		return *home;
	gw_key(&key, &p->dst, &p->src);
	share = gw_known_share(&key, p);
	if (share == *home || share == *ward)
		return share;
	w = gw_share_at(*ward);
	return w && gw_mac_equal(p->smac, w->peer_mac) ? *ward : *home;
}

/* The same, with its entry; NULL: there is none. */
static __always_inline struct gw_share *gw_share_named(const struct gw_pkt *p,
						       __u32 *index)
{
	*index = gw_share_out(p);
	return *index == GW_NO_SHARE ? NULL : gw_share_at(*index);
}

/*
 * A director is told whose a connection is that is here: a copy of its segment comes in once more,
 * and the frame becomes the note.
 */
static __noinline int gw_tell_beside(struct __sk_buff *skb,
				     const struct gw_pkt *p,
				     const struct gw_flow_key *key,
				     const struct gw_lead *lead)
{
	skb->mark = GW_MARK_TOLD;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = GW_MARK_SPOKEN;
	if (gw_write_note(skb, p, key, lead))
		return gw_verdict(GW_REASON_CRAFT_FAILED, GW_DROP);
	gw_count(GW_REASON_TOLD);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * A connection that begins here in a share of another's: a director that has sent it for
 * another reason would look for it where our own share is. A server that sends it on tells
 * the director itself. GW_UNDECIDED: it has been told.
 */
static __noinline int gw_tell_beginning(struct __sk_buff *skb,
					const struct gw_pkt *p,
					const struct gw_flow_key *key,
					__u32 share, const struct gw_share *s)
{
	struct gw_lead lead = { .irs = p->seq };

	if (!(s->front & GW_FRONT_TOLD) || skb->mark == GW_MARK_TOLD ||
	    !bpf_map_lookup_elem(&gw_wards, &key->service) ||
	    gw_is_home(key, share) || gw_mac_equal(p->smac, s->peer_mac) ||
	    gw_is_mate(p->smac) ||
	    (p->flags & (GW_TCP_SYN | GW_TCP_ACK)) != GW_TCP_SYN)
		return GW_UNDECIDED;
	__builtin_memcpy(lead.at, s->peer_mac, 6);
	return gw_tell_beside(skb, p, key, &lead);
}

/* Does this node own both its own share and its ward? A director may then mean either. */
static __always_inline bool gw_has_both(const struct gw_flow_key *key)
{
	const __u32 *home = bpf_map_lookup_elem(&gw_services, &key->service);
	const __u32 *ward = bpf_map_lookup_elem(&gw_wards, &key->service);
	const struct gw_share *s = home ? gw_share_at(*home) : NULL;
	const struct gw_share *w = ward ? gw_share_at(*ward) : NULL;

	return s && w && s->role == GW_ROLE_OWNER && w->role == GW_ROLE_OWNER;
}

/* From the first time that a director is told whose a connection is until the second. */
#define GW_LEAD_NS 1000000ull

/*
 * A client's segment from a director, of a connection that has gone from server to server, while
 * this node owns its own share and its ward. The director may not know whose it is: the server
 * that it has left tells that with the client's next segment, and one of the two servers may
 * have failed before. Nobody notices while both shares are here. Later they are at two servers,
 * and the director would send the segments to the wrong one, whose kernel resets the connection.
 * So the director is told, and again after twice as long each time, as a note may be lost.
 * GW_UNDECIDED: there is nothing to tell. Verified once.
 */
__noinline int gw_tell_whose(struct __sk_buff *skb, const struct gw_pkt *p,
			     const struct gw_flow_key *key)
{
	struct gw_lead lead = {};
	const struct gw_share *s;
	const struct gw_flow *f;
	struct gw_transfer *t;
	__u64 now = gw_now();

	if (!p || !key || skb->mark == GW_MARK_TOLD || !gw_has_both(key))
		return GW_UNDECIDED;
	f = bpf_map_lookup_elem(&gw_flows, key);
	t = bpf_map_lookup_elem(&gw_transfers, key);
	if (!f || !t || gw_is_over(f) || f->irs != t->irs ||
	    t->state != GW_TRANSFER_HERE ||
	    !(f->flags & (GW_FLOW_CAME | GW_FLOW_TWIN)) ||
	    now - t->heard_ns < t->idle_ns)
		return GW_UNDECIDED;
	s = gw_share_at(f->share);
	if (!s || !(s->front & GW_FRONT_TOLD) || !gw_is_node(s->peer_mac))
		return GW_UNDECIDED;
	if (gw_is_home(key, f->share))
		gw_self(lead.at);
	else
		__builtin_memcpy(lead.at, s->peer_mac, 6);
	lead.irs = f->irs;
	t->heard_ns = now;
	t->idle_ns = t->idle_ns < GW_LEAD_NS ? GW_LEAD_NS : 2 * t->idle_ns;
	return gw_tell_beside(skb, p, key, &lead);
}

#endif /* GW_WARD_H */
