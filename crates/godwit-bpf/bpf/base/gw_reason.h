/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every way a packet can leave a hook has a name and a per-CPU counter. User
 * space reads the names from BTF: append, never renumber.
 */
#ifndef GW_REASON_H
#define GW_REASON_H

#include "base/gw_kernel.h"

/*
 * tcx verdicts; the UAPI headers of Debian 12 are older than tcx. TCX_NEXT lets
 * other people's programs see what we pass. A redirect returns its own.
 */
#define GW_PASS (-1) /* TCX_NEXT */
#define GW_DROP 2 /* TCX_DROP */
#define GW_UNDECIDED (-2) /* no verdict yet: the caller goes on */

enum gw_reason {
	GW_REASON_NONE = 0,

	/* Not for us: passed untouched. */
	GW_REASON_NOT_IP = 1,
	GW_REASON_NOT_OURS = 2,
	GW_REASON_OTHER_HOST = 3,
	GW_REASON_NO_FLOW = 4,
	GW_REASON_MARKED = 5,

	/* whether notes go between a director and a back-end (gw_reach.h) */
	GW_REASON_REACH_ANSWERED = 6, /* back-end: a director's question */
	GW_REASON_REACH_NO_KEY = 7, /* back-end: the same of anybody else */
	GW_REASON_REACH_HEARD = 8, /* director: the answer */
	GW_REASON_REACH_STALE = 9, /* director: one that nobody waits for */

	/* Not understood: passed by the owner, dropped by everyone else. */
	GW_REASON_FRAGMENT = 10,
	GW_REASON_IP_OPTIONS = 11,
	GW_REASON_TRUNCATED = 12,
	GW_REASON_BAD_HEADER = 13,
	GW_REASON_BAD_CHECKSUM = 14, /* by TCP's checksum */
	GW_REASON_SIGNED_SYN = 15, /* TCP-MD5 or TCP-AO: left as it is */

	/* Owner, from the client. */
	GW_REASON_SYN = 20,
	GW_REASON_HANDSHAKE_DONE = 21,
	GW_REASON_CLIENT_SEGMENT = 22,
	GW_REASON_CLIENT_RST = 23,
	GW_REASON_ADOPTED_LATE = 24,
	GW_REASON_CLIENT_BEYOND = 25,
	GW_REASON_CLIENT_LATE = 26,
	GW_REASON_LAST_ACK = 27, /* said again, after both have closed */
	GW_REASON_TS_JUMP = 28, /* its TSval can't be the client's */
	GW_REASON_NOT_HEARD =
		29, /* beside a verdict: TCP takes nothing of it */

	/* Owner, from the standby. */
	/* owner: of what neither we have sent, nor the last owner */
	GW_REASON_TWIN_ACK_AHEAD = 63,
	GW_REASON_TWIN_ACK = 30,
	GW_REASON_TWIN_ACK_FORWARDED = 31,
	GW_REASON_TWIN_ACK_STALE = 32,
	GW_REASON_TWIN_ACK_BEYOND = 33,
	GW_REASON_TWIN_ACK_PAYLOAD = 34,
	GW_REASON_TWIN_ACK_NO_FLOW = 35,
	GW_REASON_TWIN_ACK_GENERATION = 36,
	GW_REASON_TWIN_ACK_FLAGS = 37,
	GW_REASON_SPOOFED = 38,
	GW_REASON_LEASH_MOVED = 39,

	/* Owner, to the client. */
	GW_REASON_SYN_ACK = 40,
	GW_REASON_SPOKEN = 41,
	GW_REASON_GATED = 42,
	GW_REASON_HELD = 43,
	GW_REASON_OWN_RST = 44,
	GW_REASON_CAUGHT_UP = 45,
	GW_REASON_CATCHING_UP = 46,
	GW_REASON_UNPROTECTED_AT_TAKEOVER = 47,
	GW_REASON_LATE_RST = 48,

	/* Shadow, from the tap. */
	/* shadow: what the owner can't have said, or sent (gw_shadow.h) */
	GW_REASON_OWNER_WORD_ABSURD = 49,
	GW_REASON_TAPPED_SYN = 50,
	GW_REASON_TAPPED_SYN_ACK = 51,
	GW_REASON_TAPPED_SEGMENT = 52,
	GW_REASON_TAPPED_RST = 53,
	GW_REASON_MATERIALISED = 54,
	GW_REASON_NOT_FROM_OWNER = 55,
	GW_REASON_NO_HANDSHAKE = 56,
	GW_REASON_NOT_EXACT = 57,
	GW_REASON_NO_LISTENER = 58,
	GW_REASON_MATERIALISE_REFUSED = 59,
	GW_REASON_TWIN_RESET = 60,
	GW_REASON_OWNER_SEGMENT = 61,
	GW_REASON_TABLE_FULL = 62,

	/* Shadow, from its own kernel. */
	GW_REASON_SUPPRESSED_ACK = 70,
	GW_REASON_REFLECTED = 71,
	GW_REASON_UNSENT = 72,
	GW_REASON_PROBE_ANSWERED = 73,
	GW_REASON_SUPPRESSED_RST = 74,
	GW_REASON_SUPPRESSED_NO_FLOW = 75,
	GW_REASON_SUPPRESSED_SYN_ACK = 76,
	GW_REASON_CRAFT_FAILED = 77,

	/* Neither owner nor shadow. */
	GW_REASON_NOT_OWNER = 80,
	GW_REASON_ADDRESS_NOT_OWNED = 81,
	GW_REASON_ARP_NOT_OWNED = 82,
	GW_REASON_ND_NOT_OWNED = 83,
	GW_REASON_ARP_RENAMED = 84,
	GW_REASON_ND_RENAMED = 85,
	GW_REASON_WRONG_INTERFACE = 86,
	GW_REASON_DISCARDED = 87,
	GW_REASON_OTHER_VLAN =
		89, /* any frame: passed, to its VLAN if there is one */

	/* shadow, from its own kernel: it is told nothing new once more (gw_rounds.h) */
	GW_REASON_ROUNDS_SPENT = 88,

	/* Counted beside a verdict. */
	GW_REASON_MIRRORED = 90,
	GW_REASON_MIRROR_SPARED = 91,
	GW_REASON_MIRROR_FAILED = 92,
	GW_REASON_OPTION_BLANKED = 93,
	GW_REASON_SACK_BLANKED = 94,
	GW_REASON_LEASHED = 95,
	GW_REASON_TS_MOVED = 96,
	GW_REASON_REPORTED = 97,
	GW_REASON_EVENT_LOST = 98,
	GW_REASON_CLAMPED = 99,
	GW_REASON_RAMPED = 100,
	GW_REASON_FLOODED = 101,

	/* Later additions to the groups above. */
	GW_REASON_TIME_WAIT_ENDED = 110, /* shadow, from the tap */
	GW_REASON_TOO_EARLY = 111, /* adopted twin, to the client */
	GW_REASON_TAPPED_BEYOND = 112, /* shadow, from the tap */
	GW_REASON_FENCED = 113, /* owner, to anybody: its lease has ended */
	GW_REASON_RELEASED = 114, /* owner: another node takes the share over */
	GW_REASON_PROCESS_EXIT = 115, /* owner: the flow's process has died */
	/* counted beside a verdict: a silence ended by itself */
	GW_REASON_NO_TAKER = 116,
	GW_REASON_FORWARDED = 117, /* no role: to the peer, who has one */
	/* counted beside a verdict: output was summed up */
	GW_REASON_VERIFIED = 118,
	GW_REASON_REPLAYED = 119, /* shadow: input of a running flow */
	GW_REASON_REPLAY_NO_FLOW = 120, /* shadow: nothing to replay it to */
	/* counted beside a verdict: the log of a flow */
	GW_REASON_LOG_OVER = 121,
	GW_REASON_LOG_FAILED = 122,
	GW_REASON_LOG_URGENT = 123,

	/* with this node's own address, from the link: nobody's (gw_own.h) */
	GW_REASON_OWN_ADDRESS = 105,

	/* a planned move */
	GW_REASON_TURNING = 124, /* the share has just changed hands */
	GW_REASON_UNDER_WAY = 125, /* what an owner sent before the move */
	GW_REASON_HANDED_ON = 126, /* shadow: to the owner, which mirrors it */
	GW_REASON_OWNER_WORD = 127, /* shadow: what the owner has */

	GW_REASON_CLIENT_AHEAD = 128, /* owner: of a handshake of before */
	GW_REASON_GIVEN_UP_ACK = 129, /* shadow: of a twin that nobody serves */

	/* a connection goes to another server by itself */
	GW_REASON_HELD_BACK =
		130, /* from the client: it waits for its socket */
	GW_REASON_SENT_ON = 131, /* from the client: to where it is now */
	GW_REASON_NOT_YET = 132, /* to the client: its socket is not whole */
	GW_REASON_AWAY = 133, /* to the client: it is elsewhere */
	GW_REASON_HERE = 134, /* either way: it has come from elsewhere */
	GW_REASON_SENT_BACK = 135, /* from where it was sent on to */
	GW_REASON_BORN = 136, /* from the agent: its server gets a socket */
	GW_REASON_BORN_BEFORE = 137, /* from the agent: it has one */

	/* shadow, beside a verdict: its kernel took the client for another */
	GW_REASON_TWIN_MENDED = 140,
	GW_REASON_TWIN_MISBORN = 141, /* and still does */

	/* with a server's address, and not of it (gw_tag.h) */
	GW_REASON_SLIP_FORGED = 142,
	GW_REASON_TAG_WRONG = 143, /* a segment, a note, a probe or a canary */
	GW_REASON_TAG_MISSING =
		144, /* the same, as one that knows no tags says it */
	GW_REASON_NOTE_REPLAYED = 16, /* a note that was heard before */

	/* for its share, by two servers before us: it is sent on no more (gw_hops.h) */
	GW_REASON_HOPS = 145,

	/* owner: its source has its part of the flow table (gw_crowd.h) */
	GW_REASON_SOURCE_SHARE = 146,
	/* beside no verdict: a log that made room for those of others */
	GW_REASON_LOG_EVICTED = 147,

	/* director: a client's frame goes to a back-end */
	GW_REASON_DIRECTED_NEW = 150, /* a connection begins */
	GW_REASON_DIRECTED = 151, /* its slot has only ever had one */
	GW_REASON_DIRECTED_ENTRY = 152, /* its entry says where */
	GW_REASON_DIRECTED_BASE = 153, /* it began before the slot changed */
	GW_REASON_DIRECTED_ERROR = 154, /* an ICMP error about it */
	/* a SYN, to who would have its connection (gw_place.h) */
	GW_REASON_DIRECTED_ASKED = 64,
	GW_REASON_ANSWER_STALE = 65, /* of who was not asked */
	/* a director has asked about a SYN: its connection is here, or not (gw_asked.h) */
	GW_REASON_ASKED_KNOWN = 66, /* beside a verdict */
	GW_REASON_ASKED_UNKNOWN = 67,
	GW_REASON_NO_BACKEND = 155, /* nobody is there to have it */
	GW_REASON_ENTRY_FAILED =
		156, /* beside a verdict: it goes to the base */
	GW_REASON_LEARNT = 157, /* a back-end says where one is now */
	GW_REASON_LEARN_REFUSED = 158, /* it is no back-end, or means none */

	/* beside a verdict: its director was told where the connection is */
	GW_REASON_TOLD = 159,

	/* a connection goes to another server with its next request */
	GW_REASON_ASKED =
		160, /* the request, with the question whether it may */
	GW_REASON_ACCEPTED = 161, /* it is there: ours is reset */
	GW_REASON_REFUSED = 162, /* beside a verdict: the request stays here */
	GW_REASON_UNANSWERED = 163, /* to the client, while that is open */
	GW_REASON_CAME = 164, /* it is here, from this request on */
	GW_REASON_CAME_BEFORE = 165, /* beside a verdict: asked once more */
	GW_REASON_SENT_AWAY = 166, /* beside a verdict: we will not have it */
	GW_REASON_OVERLOADED = 167, /* why: the accept queue is full */
	/* of a request: another CPU is asking about a copy of it */
	GW_REASON_ASKED_TWICE = 168,
	GW_REASON_OTHER_SLIP = 169, /* why: of a version that is not ours */
	GW_REASON_STALE_SLIP = 170, /* an answer, or a question, of before */
	GW_REASON_NO_SLIP = 171, /* from another server, and not known here */
	GW_REASON_RECLAIMED = 172, /* beside a verdict: who was asked is dead */
	GW_REASON_MATE_GONE =
		173, /* who has it is dead: our kernel resets it */

	GW_REASON_WAY_CLEARED =
		179, /* an old socket gives way to one that comes */

	/* beside a verdict: one request stays where it is */
	GW_REASON_KEPT_BODY = 174, /* it has a body that is still to come */
	GW_REASON_KEPT_BUSY = 175, /* not all of the last reply is there */
	GW_REASON_KEPT_LONG = 176, /* no room for a slip in its frame */
	GW_REASON_KEPT_HERE = 177, /* by a rule, or because none says more */
	GW_REASON_KEPT_ALONE =
		178, /* nobody else that its rule names is there */

	/* beside a verdict: a connection stays for good (gw_talk.h) */
	GW_REASON_STAYS_GAP = 200, /* its requests could not be followed */
	GW_REASON_STAYS_PIPELINED = 201, /* it asks before it has its reply */
	GW_REASON_STAYS_NOT_HTTP = 202, /* that is no request of HTTP/1.x */
	GW_REASON_STAYS_SPANS = 203, /* its head is in more than a segment */
	GW_REASON_STAYS_BODY = 204, /* its length is for the server to find */
	GW_REASON_STAYS_BOUND = 205, /* it is bound to what it has proved */
	GW_REASON_STAYS_REPLY = 206, /* where its reply ends is not known */

	/* a connection begins at a lighter server */
	GW_REASON_PASSED_ON = 207, /* beside a verdict: the SYN goes there */
	GW_REASON_NONE_LIGHTER =
		208, /* beside a verdict: we are loaded, and so are all others */
	GW_REASON_LOAD_HEARD = 209, /* another server says how loaded it is */
	GW_REASON_NOTE_REFUSED = 210, /* of no server, or about nothing here */
	/* beside a verdict: a program has named nobody who is open */
	GW_REASON_POLICY_REFUSED = 211,
	GW_REASON_POLICY_LOST = 212, /* no program has answered */

	/* between a director and back-ends that are not on its link */
	GW_REASON_TUNNEL_FULL =
		213, /* director: it would be too long for the link */
	GW_REASON_TUNNEL_FAILED = 214,
	GW_REASON_UNTUNNELLED = 215, /* back-end, beside a verdict */
	GW_REASON_TUNNELLED = 216, /* director, beside a verdict */
	GW_REASON_TUNNEL_FOREIGN = 18, /* back-end: by no router of the file */

	/* a connection that came goes on with its congestion window */
	GW_REASON_WINDOW_KEPT = 217,

	/* connections with twins that go with their requests (gw_ring.h) */
	GW_REASON_KEPT_REJOINING =
		218, /* beside a verdict: a twin of it is being made */
	/* beside a verdict: of another owner's, by us as its standby */
	GW_REASON_RELAYED = 219,
	GW_REASON_TWIN_ASKED = 220, /* owner, beside a verdict */
	GW_REASON_TWIN_CAME = 221, /* standby: its twin is made */
	/* director, beside a verdict: to who has taken over */
	GW_REASON_DIRECTED_OWNER = 222,
	/* owner: a RST of a socket whose connection is not ours */
	GW_REASON_LEFT_OVER = 223,
	/* beside a verdict: the client is told what it need not say again */
	GW_REASON_REST_ASKED = 224,
	/* each server has sent it on to the next one, until it had no hop left */
	GW_REASON_SENT_ROUND = 225,
	/* beside a verdict: data on a connection that was taken over */
	GW_REASON_KEPT_ADOPTED = 226,

	/* frames between servers under an EtherType of our own (gw_slip.h) */
	GW_REASON_SLIP_HEARD = 228, /* beside a verdict */
	GW_REASON_SLIP_REFUSED = 229, /* of no server, or it has no packet */
	/* a question (gw_settle.h), beside a verdict */
	GW_REASON_NO_ANSWER = 246, /* for a while now: the agents see to it */
	GW_REASON_RULED_OUT =
		253, /* why: its asker was told that it came to nothing */
	/* whom it was put to may have forgotten it: the client decides */
	GW_REASON_LAPSED = 247,
	/* who gets a share is told where a connection has gone from it */
	GW_REASON_BEQUEATHED = 227,
	/* whether the link carries what servers send each other (gw_path.h) */
	GW_REASON_PATH_ANSWERED =
		250, /* another server's probe, beside a verdict */
	GW_REASON_PATH_HEARD = 251, /* our own has come back */
	GW_REASON_PATH_STALE = 17, /* the same of one that nobody waits for */
	/* beside a verdict: whom a request is for, and no probe comes back from */
	GW_REASON_PATH_UNPROVED = 252,
	/* a SYN where it is not known which server has the connection */
	GW_REASON_SYN_TOO_EARLY = 230,

	/* director, beside a verdict: others did not hear of an entry at once */
	GW_REASON_NOT_SHARED = 180,
	/* beside a verdict: a request whose segments are signed */
	GW_REASON_KEPT_SIGNED = 181,

	/* any frame, while a program goes to the head of its chain */
	GW_REASON_MOVING = 231,

	/* beside no verdict: not all files of a process that died were looked at */
	GW_REASON_EXIT_WALK_CUT = 232,

	/* canary (gw_canary.h), owner: */
	GW_REASON_CANARY_SENT = 233,
	GW_REASON_CANARY_ECHOED = 234, /* the standby's tap had it */
	GW_REASON_CANARY_PROVED = 235, /* its kernel made a socket of it */
	GW_REASON_CANARY_STALE = 236, /* an answer that nobody waits for */
	/* standby: */
	GW_REASON_CANARY_HEARD = 237, /* beside a verdict: echoed */
	GW_REASON_CANARY_BORN = 238,
	GW_REASON_CANARY_ANSWERED = 239, /* its socket has spoken */
	GW_REASON_CANARY_SILENCED = 240, /* its socket is ended */
	GW_REASON_CANARY_NO_LISTENER = 241, /* neither could a twin be born */
	GW_REASON_CANARY_IN_THE_WAY = 242, /* an earlier one has its port */
	GW_REASON_CANARY_REFUSED = 243, /* not from a peer, or by the kernel */

	/* a process of this machine connects to a service (gw_local.h) */
	GW_REASON_LOCAL_CLIENT = 244, /* that is owned here: unprotected */
	GW_REASON_LOCAL_CLIENT_REFUSED = 245, /* that is owned elsewhere */

	/* guard: ARP or an advertisement that names a service address */
	GW_REASON_TOLD_ELSEWHERE = 248,
	/* guard, beside: a connection by another interface: not protected */
	GW_REASON_OTHER_INTERFACE = 249,

	/* beside a verdict: a change that gw_phase.h does not have */
	GW_REASON_PHASE_REFUSED = 19,
	/* beside a verdict: the kernel had no memory for a flow's timer (gw_flow.h) */
	GW_REASON_TIMER_FAILED = 199,

	GW_REASON_COUNT = 254,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GW_REASON_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} gw_counters SEC(".maps");

static __always_inline void gw_count(enum gw_reason reason)
{
	__u32 index = reason;
	__u64 *count = bpf_map_lookup_elem(&gw_counters, &index);

	if (count)
		(*count)++;
}

/* The one way out of a hook. */
static __always_inline int gw_verdict(enum gw_reason reason, int verdict)
{
	gw_count(reason);
	return verdict;
}

#endif /* GW_REASON_H */
