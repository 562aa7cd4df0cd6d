/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Marks of segments that Godwit itself puts on the wire or into the stack. To set one
 * on a socket needs CAP_NET_RAW or CAP_NET_ADMIN (SECURITY.md). User space has those
 * that it sets in godwit-bpf (MARK_SPOKEN and so on).
 */
#ifndef GW_MARKS_H
#define GW_MARKS_H

#define GW_MARK_SPOKEN 0x67770001u /* egress: final, let out as it is */
#define GW_MARK_REFLECT 0x67770002u /* ingress: made by us, for our kernel */
#define GW_MARK_INJECT 0x67770003u /* egress: from the agent, turn to ingress */
#define GW_MARK_DISCARD \
	0x67770004u /* ingress: the kernel is to think it left */
#define GW_MARK_REPLAY 0x67770005u /* a client's input, for a new twin */
#define GW_MARK_AGAIN 0x67770006u /* ingress: what was in its way is gone */
#define GW_MARK_TOLD 0x67770007u /* ingress: a director knows where it begins */
#define GW_MARK_SLIP 0x67770008u /* ingress: another server's, with a slip */

/* egress: a twin's ACK for its owner, final, and with its tag if that one has a key */
#define GW_MARK_PROVED 0x6777000bu
/* ingress: a SYN about which a director asks; gw_asked.h */
#define GW_MARK_ASKED 0x6777000au
/* egress, then ingress: from the agent, an answer to our own question */
#define GW_MARK_SETTLED 0x67770009u

/* canaries: gw_canary.h */
#define GW_MARK_CANARY 0x67770010u /* from the agent, to be mirrored */
#define GW_MARK_CANARY_HEARD 0x67770011u /* ingress: a copy to be echoed */
#define GW_MARK_CANARY_ECHO 0x67770012u /* egress: let out as it is */

#endif /* GW_MARKS_H */
