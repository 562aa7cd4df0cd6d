/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A slip's tag: put behind it for one server, and looked at when it comes from another. */
#ifndef GW_PROOF_H
#define GW_PROOF_H

#include "request/gw_slip.h"
#include "net/gw_tag.h"

static __always_inline __be32 gw_slip_word(const struct gw_slip *slip, int at)
{
	const __u8 *bytes = __builtin_assume_aligned(slip, sizeof(__be32));
	__be32 word;

	/* one load, and not four of a byte each */
	__builtin_memcpy(&word, bytes + at * sizeof(word), sizeof(word));
	return word;
}

/* The tag of a slip and the segment that it is behind. */
__noinline __u64 gw_slip_tag(const struct gw_pkt *p, const struct gw_slip *slip,
			     __u64 k0, __u64 k1)
{
	__u64 key[] = { k0, k1 };
	struct gw_sip s;

	if (!p || !slip)
		return 0;
	gw_sip_begin(&s, key);
	for (int i = 0; i < 6; i++)
		gw_sip_word(&s, gw_wire_word((const __be32 *)slip + 2 * i));
	gw_sip_word(&s,
		    (__u64)bpf_ntohl(gw_slip_word(slip, 12)) << 32 | p->len);
	gw_sip_segment(&s, p, 7);
	return gw_sip_end(&s);
}

_Static_assert(sizeof(struct gw_slip) == 13 * 4, "words of gw_slip_tag()");

/*
 * Puts the slip behind the packet, in place of any that is there, for the server with that
 * address: with a tag, if that one has told a key. 0 or -1; then the frame is not to be used.
 */
__noinline int gw_seal(struct __sk_buff *skb, const struct gw_pkt *p,
		       struct gw_slip *slip, const struct gw_mate_mac *to)
{
	const struct gw_trust *k;
	__be64 tag;
	__u32 end;

	if (!p || !slip || !to)
		return -1;
	k = bpf_map_lookup_elem(&gw_trusts, to);
	if (k && !(k->flags & GW_TRUST_OUT))
		k = NULL;
	/* another version goes back as it came */
	if (slip->version == GW_SLIP_VERSION || slip->version == GW_SLIP_TAGGED)
		slip->version = k ? GW_SLIP_TAGGED : GW_SLIP_VERSION;
	end = gw_packet_end(p);
	if (skb->len != end + gw_slip_len(slip) &&
	    bpf_skb_change_tail(skb, end + gw_slip_len(slip), 0))
		return -1;
	if (bpf_skb_store_bytes(skb, end, slip, sizeof(*slip), 0))
		return -1;
	if (!k || slip->version != GW_SLIP_TAGGED)
		return 0;
	tag = bpf_cpu_to_be64(gw_slip_tag(p, slip, k->out[0], k->out[1]));
	return bpf_skb_store_bytes(skb, end + sizeof(*slip), &tag, sizeof(tag),
				   0);
}

/* The same for an address that is no map's. */
static __always_inline int gw_seal_for(struct __sk_buff *skb,
				       const struct gw_pkt *p,
				       struct gw_slip *slip, const __u8 *mac)
{
	struct gw_mate_mac to = {};

	__builtin_memcpy(to.mac, mac, 6);
	return gw_seal(skb, p, slip, &to);
}

/*
 * Is the slip of the server whose address its frame has? 1 or 0. One without a tag is, if that
 * server has not said that it tags all.
 */
__noinline int gw_check_slip(struct __sk_buff *skb, const struct gw_pkt *p,
			     const struct gw_slip *slip)
{
	const struct gw_trust *k;
	__be64 raw;
	__u64 tag;

	if (!p || !slip)
		return 0;
	k = gw_trust_of(p->smac);
	if (!k || !(k->flags & GW_TRUST_IN))
		return 1;
	if (slip->version != GW_SLIP_TAGGED)
		return !(k->flags & GW_TRUST_DEMANDED);
	if (bpf_skb_load_bytes(skb, gw_packet_end(p) + sizeof(*slip), &raw,
			       sizeof(raw)))
		return 0;
	tag = bpf_be64_to_cpu(raw);
	for (int i = 0; i < GW_TRUST_KEYS && gw_has_key(k, i); i++)
		if (gw_slip_tag(p, slip, k->believed[i][0],
				k->believed[i][1]) == tag)
			return 1;
	return 0;
}

#endif /* GW_PROOF_H */
