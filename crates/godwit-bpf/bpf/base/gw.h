/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the data path shares with user space: C owns these layouts, Rust reads
 * them from BTF (docs/glossary.md has the words, ARCHITECTURE.md the life of
 * a flow). Field names follow RFC 9293 and RFC 7323. All sequence numbers,
 * ports and windows here are in host order unless the type says __be.
 */
#ifndef GW_H
#define GW_H

#define GW_MAX_SHARES 256

/* Who this node is for a share. Written by the agent, one word per takeover. */
enum gw_role {
	GW_ROLE_NONE = 0, /* neither speaks nor listens for the share */
	GW_ROLE_OWNER = 1, /* speaks to the clients */
	GW_ROLE_SHADOW = 2, /* runs silent twins */
};

/* Life of a flow on this node. */
enum gw_phase {
	GW_PHASE_NEW = 0, /* an entry that is being made */
	GW_PHASE_CONFIRMING = 1, /* owner: gated, no twin has answered yet */
	GW_PHASE_PROTECTED = 2, /* owner: a twin holds all that was told */
	GW_PHASE_UNPROTECTED = 3, /* owner: not gated; gw_flow.why says why */
	GW_PHASE_TWIN = 4, /* shadow: a silent twin; see gw_turn_owner() */
	GW_PHASE_CLOSED = 5, /* shadow: the twin reset before the flow ended */
	GW_PHASE_ENDED = 6, /* both FINs acknowledged, or a RST passed */
	GW_PHASE_REJOINING = 7, /* owner: a twin is made of a running flow */
};

/* Why a flow is not protected; equal to godwit-wire's UnprotectedReason. */
enum gw_why {
	GW_WHY_NONE = 0,
	GW_WHY_STANDBY_LOST = 1,
	GW_WHY_NOT_CONFIRMED = 2,
	GW_WHY_LAGGING = 3,
	GW_WHY_TWIN_CLOSED = 4,
	GW_WHY_NO_STANDBY = 5,
	GW_WHY_AFTER_TAKEOVER = 6,
	GW_WHY_NOT_IN_SYNC = 7,
	GW_WHY_GATE_OFF = 8,
	GW_WHY_PREDATES = 9,
	GW_WHY_DIVERGED_LENGTH = 10,
	GW_WHY_DIVERGED_CONTENT = 11,
	GW_WHY_COMMIT_FAILED = 12,
	GW_WHY_SIGNED_SEGMENTS = 13,
};

/* What the data path tells the agent; equal to godwit-core's FlowEventKind. */
enum gw_event_kind {
	GW_EVENT_UNCONFIRMED = 1,
	GW_EVENT_NOT_CONFIRMED = 2,
	GW_EVENT_STALLED = 3,
	GW_EVENT_TWIN_CLOSED = 4,
	GW_EVENT_ENDED = 5,
	GW_EVENT_MATERIALISE_FAILED = 6,
	GW_EVENT_CONFIRMED = 7,
	GW_EVENT_REJOINED = 8,
	GW_EVENT_WHOLE = 9,
	GW_EVENT_LEFT = 10, /* it is another server's: as good as over here */
	/* a question has no answer: `generation` is whom it was put to, `detail` its
	 * number, `place` where its request is kept (gw_settle.h) */
	GW_EVENT_UNANSWERED = 11,
	GW_EVENT_LISTENER =
		12, /* a listener was closed, whose-ever: of no flow */
	GW_EVENT_STOPPED =
		13, /* the server process `detail` is sent a signal that stops */
	GW_EVENT_FROZEN =
		14, /* a control group freezes, with whomever: of no flow */
	/* owner: the client has sent a RST of which our kernel knows better whether it counts */
	GW_EVENT_RESET = 15,
};

/* What was negotiated, and what has been seen. */
enum gw_flow_flags {
	GW_FLOW_TS = 1 << 0,
	GW_FLOW_SACK = 1 << 1,
	GW_FLOW_WSCALE = 1 << 2,
	GW_FLOW_ECN = 1 << 3,
	GW_FLOW_TWIN = 1 << 4, /* its socket was materialised here */
	/* that socket, or one that came, has spoken: it exists */
	GW_FLOW_TWIN_SEEN = 1 << 5,
	GW_FLOW_WATCHED = 1 << 6, /* the watchdog timer is armed */
	GW_FLOW_TS_MOVED = 1 << 7, /* ts_off has been settled at takeover */
	GW_FLOW_RAMPING = 1 << 8, /* window opens slowly after a takeover */
	GW_FLOW_CLIENT_FIN = 1 << 9,
	GW_FLOW_OWN_FIN = 1 << 10,
	GW_FLOW_LEASHED =
		1 << 11, /* the right edge shown to the kernel is held */
	GW_FLOW_GATED = 1 << 12, /* the ACK gate holds for this flow */
	GW_FLOW_NOT_IN_SYNC = 1 << 13, /* shadow: demoted, must not be served */
	GW_FLOW_ADOPTED = 1 << 14, /* the twin has become the owner's socket */
	GW_FLOW_OWED = 1 << 15, /* a duplicate ACK was held back */
	GW_FLOW_OWNER_FIN = 1 << 16, /* shadow: the owner has sent its FIN */
	GW_FLOW_OVER = 1 << 17, /* ended; final, whatever the phase says */
	GW_FLOW_ORPHANED = 1 << 18, /* owner: its process has died; gw_exit.h */
	GW_FLOW_WHOLE =
		1 << 19, /* owner: the new twin of a running flow has all */
	GW_FLOW_NATIVE = 1 << 20, /* a twin that was an owner's socket first */
	GW_FLOW_FLIGHT = 1 << 21, /* gw_flow.flight counts */
	GW_FLOW_EXITED =
		1 << 22, /* shadow: its process ended, as it meant to */
	GW_FLOW_FLOOR = 1 << 23, /* gw_flow.floor counts */
	/* shadow: the new twin of a running flow, which the owner waits for */
	GW_FLOW_AWAITED = 1 << 24,
	GW_FLOW_CAME =
		1 << 25, /* another server has handed it over; gw_come.h */
	GW_FLOW_SIGNED = 1 << 26, /* its segments are signed; gw_options.h */
};

/* Half of a connection: an address (IPv4 as ::ffff:a.b.c.d) and a port. */
struct gw_endpoint {
	__be32 addr[4];
	__be16 port;
	__u16 pad;
};

/* A flow as the data path keys it. */
struct gw_flow_key {
	struct gw_endpoint client;
	struct gw_endpoint service;
};

/* One share: written by the agent as a whole, read per segment. */
struct gw_share {
	__u64 epoch;
	__u64 lag_limit_ns; /* longest time that a let-out ACK may trail */
	__u16 role; /* enum gw_role */
	__u16 turn; /* how often the share changed hands; one word with role */
	__u32 generation; /* owner: of the standby that is in sync; 0: none */
	__u32 leash; /* bytes that the twin may lag behind */
	__u32 gate; /* 1: hold ACKs until the twin has the bytes */
	__u32 takeovers; /* how often this node took the share over */
	__u8 peer_mac[6]; /* where mirrored segments go, and twin ACKs come from */
	__u8 service_mac[6]; /* group address of a multicast tap; zero: mirror */
	__u32 log_cap; /* bytes of a client's input that are kept; gw_log.h */
	__u32 log_mode; /* enum gw_log_mode */
	__u32 moves; /* enum gw_moves */
	__u32 continued; /* owner: the generation of the twins it has; 0: none */
	__u16 keep_v4; /* shadow: port on 127.0.0.1 where twins are kept ... */
	__u16 keep_v6; /* ... and on ::1; 0: its servers have them. docs/adr/0018 */
	__u32 front; /* of enum gw_front */
};

/* Who stands before the servers of a share. */
enum gw_front {
	GW_FRONT_TOLD = 1 << 0, /* a director, which is told who has gone */
	/* somebody: none of the servers answers for its addresses */
	GW_FRONT_THERE = 1 << 1,
};

/* Whether connections of a share go to other servers one by one (docs/adr/0017). */
enum gw_moves {
	GW_MOVES_NOT = 0, /* together, or not at all */
	GW_MOVES_HOME = 1, /* yes; new ones come here */
	GW_MOVES_GUEST = 2, /* yes; new ones come to another server */
};

/* Where a connection is that goes to another server by itself. */
enum gw_handoff_mode {
	GW_HANDOFF_HELD = 1, /* about to come */
	GW_HANDOFF_AWAY = 2, /* it has left */
	GW_HANDOFF_HERE = 3, /* it has come */
	GW_HANDOFF_BORN = 4, /* it has come, and is about to get its socket */
};

/* Its entry; see gw_handoff.h. What no program reads is for the next agent. */
struct gw_handoff {
	__u64 heard_ns; /* CLOCK_BOOTTIME: when its client spoke last */
	__u32 irs; /* of the client */
	__u32 mode; /* enum gw_handoff_mode */
	__u32 device; /* HELD: interface index of the agent's tun */
	__u8 mac[6]; /* AWAY, HELD: of the node that has it; HELD: or 0 */
	__u16 to; /* agent: that node, by its place in the configuration */
	__u32 place; /* agent: enum gw_handoff_place */
	__u32 epoch; /* agent: the number of the attempt that took it away */
	__u32 arrival; /* agent: of that which brought it; 0: none did */
	__u16 from; /* agent: the node that it came from */
	__u16 settled; /* agent: 1: that node knows that it came */
	__u32 spent; /* agent: the greatest number that was used */
	__u64 life; /* agent: epoch of `to` when it was given away, until it has it */
	__u8 origin[6]; /* HELD, AWAY: of the node that it is, or was, to come from; or 0 */
	__u16 pad;
};

/* What the agent has decided of it, equal to godwit-core's handoff::Place. */
enum gw_handoff_place {
	GW_HANDOFF_ELSEWHERE = 0, /* nothing: it was never here */
	GW_HANDOFF_PRESENT = 1, /* it is ours */
	GW_HANDOFF_COMMITTED = 2, /* it is given away */
	GW_HANDOFF_MOVED = 3, /* and has arrived there */
};

/*
 * A connection that came without a socket, as its first segment is to make one; see
 * gw_newborn.h. Not pinned: the next agent resets what it finds half-way.
 */
struct gw_newborn {
	__u32 irs; /* of the client */
	__u32 iss; /* of the service */
	__u32 ts_val; /* what the service's clock says now */
	__u32 flags; /* enum gw_flow_flags, the negotiated ones */
	__u16 mss; /* that the client announced */
	__u8 snd_wscale;
	__u8 rcv_wscale;
};

/*
 * Whether the owner of a share may speak. An entry of its own, apart from
 * gw_share: that one is copied in as a whole, which may tear a word that moves
 * at every renewal. Here each word is stored by itself; see gw_fence.h.
 */
struct gw_fence {
	__u64 expiry_ns; /* CLOCK_BOOTTIME; 0: never granted; ~0: no end */
	__u64 hold_ns; /* how long a dead process is kept silent; 0: it is not */
	__u64 died_ns; /* CLOCK_BOOTTIME of its death: its flows; 0: none did */
	__u64 released_ns; /* CLOCK_BOOTTIME: the whole share; 0: it is not */
};

#define GW_NO_EXPIRY (~0ull)

/* A change to a fence that the agent asks for; see gw_fence.h. */
enum gw_fence_order_kind {
	GW_FENCE_EXPIRE = 1, /* the owner may speak until `ns` */
	GW_FENCE_HOLD = 2, /* a process that dies is kept silent for `ns` */
	GW_FENCE_RELEASE = 3, /* the share is silent: another node takes it */
	GW_FENCE_OPEN = 4, /* undoes that, and the silence of dead processes */
};

struct gw_fence_order {
	__u64 ns;
	__u32 share;
	__u32 kind; /* enum gw_fence_order_kind */
};

/* What the client has told us, in its own words. */
struct gw_client {
	__u64 heard_ns; /* when it last spoke */
	__u64 ts_base_ns; /* a moment, and ... */
	__u32 ack; /* SND.UNA of the service: highest byte acknowledged */
	__u32 edge; /* right edge of the window it offers */
	__u32 end; /* end of the highest segment it has sent */
	__u32 ts_val;
	__u32 ts_ecr;
	__u32 ts_base; /* ... the least TSval that the owner had then */
	__u32 fin; /* sequence number after its FIN */
	/* owner: its `ack` at gated.leashed_ns, or when a new twin first spoke */
	__u32 due;
	__u32 wl1; /* SND.WL1: sequence number where `edge` was last said */
	__u32 ts_seen; /* TSval of its last segment, in order or not */
	__u32 ts_odd; /* of one that was refused for it since; gw_stamp.h */
	__u8 mac[6]; /* next hop towards it, as our kernel resolved it */
	__u16 wnd; /* window field of its last segment */
	__u32 reset_at; /* owner: when GW_EVENT_RESET was told last, in 2^30 ns; 0: not yet */
};

/* What our own kernel says of the connection. */
struct gw_own {
	__u32 snd_nxt; /* owner: highest byte sent; twin: highest byte reflected */
	__u32 ack; /* RCV.NXT as last announced */
	__u32 edge; /* right edge as last announced */
	__u32 ts_val;
	__u32 fin; /* sequence number after our FIN */
	__u32 ts_off; /* added to TSval, subtracted from TSecr */
	__u32 ts_first; /* TSval of the first segment after a takeover */
	__u32 tried; /* twin: end of what it would send beyond snd_nxt */
	__u64 first_ns; /* when that was sent; 0: not yet */
};

/* Owner: what the standby holds, and what the client was told. */
struct gw_gated {
	__u64 held_ns; /* since when the twin holds the client back; 0: not */
	__u64 leashed_ns; /* when the client had client.due; 0: no leash */
	__u32 twin_ack; /* RCV.NXT of the twin */
	__u32 twin_edge; /* right edge that the twin offers */
	__u32 twin_snd_nxt; /* how far the twin's application has answered */
	__u32 told_ack; /* RCV.NXT as the client knows it */
	__u32 told_edge; /* right edge as the client knows it */
	__u32 kernel_edge; /* right edge of the client as our kernel knows it */
	__u32 sack[6]; /* up to three blocks that the twin holds, start/end */
};

/* Owner: what was last mirrored. Shadow: what was last reported. */
struct gw_tapped {
	__u64 ns;
	__u32 ack;
	__u32 edge;
	__u32 snd_nxt;
	__u16 wnd;
	__u16 flags;
};

/* Where a flow's log begins (docs/adr/0013). */
enum gw_log_mode {
	GW_LOG_MODE_OFF = 0, /* no log is kept */
	GW_LOG_MODE_CONNECTION = 1, /* with the connection */
	GW_LOG_MODE_REQUEST = 2, /* at a request boundary, anew at each */
	GW_LOG_MODE_LATEST = 3, /* wherever its cap lets it: it slides */
};

/* What became of a flow's log. */
enum gw_log_state {
	GW_LOG_NONE = 0, /* it was never begun */
	GW_LOG_KEPT = 1, /* as far as `end` it is whole */
	GW_LOG_OVER = 2, /* there was more input than the cap allows, or a gap
			  * that is longer */
	GW_LOG_FAILED = 3, /* no memory, or a segment could not be read */
	GW_LOG_URGENT = 4, /* urgent data: the log has no place for the mark */
	GW_LOG_BEGUN = 5, /* whether a request begins at `base` is not known */
};

/* What the client has said since the log began; the bytes are in gw_log. */
struct gw_log {
	__u64 bytes_out; /* gw_flow.bytes_out where it began */
	__u32 base; /* sequence number of its first byte, and ... */
	__u32 base_ack; /* ... of what the client expected there */
	__u32 end; /* all before this is kept */
	__u32 late; /* start and ... */
	__u32 late_end; /* ... end of what came before its turn; equal: none */
	__u32 answered; /* SND.NXT of the service at the last input */
	__u32 top; /* end of what may be in a chunk */
	__u8 state; /* enum gw_log_state */
	__u8 is_marked; /* a request may begin at `mark`; gw_boundary.h */
	__u8 pad[2];
	__u32 mark;
	__u32 mark_ack; /* what the client expected there */
	__u64 mark_out; /* gw_flow.bytes_out there */
};

struct gw_flow {
	struct bpf_timer timer; /* owner: watchdog; ended: removes the entry */
	__u64 born_ns;
	__u64 rtt_ns; /* from the SYN-ACK to the client's answer */
	__u64 bytes_in;
	__u64 bytes_out;
	struct gw_client client;
	struct gw_own own;
	struct gw_gated gated;
	struct gw_tapped tapped;
	__u32 share;
	__u32 generation; /* of the standby that saw the handshake; 0: none */
	__u32 irs; /* of the client */
	__u32 iss; /* of the service */
	__u32 ramp; /* bytes that may be in flight after a takeover */
	__u32 flags; /* enum gw_flow_flags */
	__u16 mss; /* that the client announced */
	__u16 syn_ack_mss; /* that we announced */
	__u8 phase; /* enum gw_phase */
	__u8 why; /* enum gw_why */
	__u8 snd_wscale; /* shift of the windows that the client announces */
	__u8 rcv_wscale; /* shift of the windows that the service announces */
	__u32 part; /* role and turn of the share that it follows; gw_turn.h */
	__u32 flight; /* end of what the last owner had under way */
	__u64 rejoined_ns; /* when it became protected again; 0: never */
	struct gw_log log;
	__u32 floor; /* right edge that was told and not offered; gw_edge.h */
	__u32 birth; /* first byte of the client that our socket was to have */
	__u32 birth_ack; /* first byte that it was to say */
	__u32 rounds; /* how often a twin was told nothing new, and when; gw_rounds.h */
};

/* A handshake under way. LRU: a SYN flood evicts these, never a flow. */
struct gw_half_open {
	__u64 born_ns;
	__u32 share;
	__u32 generation;
	__u32 irs;
	__u32 iss;
	__u32 syn_ack_edge; /* irs + 1 + window of the SYN-ACK */
	__u32 ts_val; /* of the SYN-ACK */
	__u32 client_ts_val; /* of the SYN */
	__u16 mss;
	__u16 syn_ack_mss;
	__u16 flags; /* enum gw_flow_flags, the negotiated ones */
	__u8 snd_wscale;
	__u8 rcv_wscale;
	__u8 answered; /* the SYN-ACK was seen */
	__u8 tapped; /* seen through the tap: the socket is elsewhere */
	__u8 client_mac[6];
	__u8 is_signed; /* of the SYN: it must not be changed */
	/* 1: until it is answered, `iss` is the irs of another, given up: gw_handshake.h */
	__u8 marked;
	__u8 pad[2];
};

#define GW_MASKS 4
#define GW_MASK_LEN 32

/* The name of a header whose value may differ, in lower case. */
struct gw_mask {
	__u8 name[GW_MASK_LEN];
	__u32 len; /* below GW_MASK_LEN */
};

/* How much of a share's output is compared, and how. */
struct gw_verify {
	__u32 part; /* of 2^32; ~0: everything */
	__u32 masks; /* bit per entry of `mask` that is in use */
	struct gw_mask mask[GW_MASKS];
};

/* Where in a line of text a position is. */
struct gw_line {
	__u32 names; /* bit per mask whose name may stand here */
	__u32 at; /* bytes of the name so far */
	__u32 hidden; /* 1: within the value of a header that is masked */
};

#define GW_OUTPUT_BLOCKS 64

/*
 * Sums over the output of a flow, see gw_verify.h. A sum goes with its
 * position in one word: the offset in the stream behind the last byte that is
 * in it (from 0, modulo 2^32) above, the sum below. 0: none.
 */
struct gw_output {
	__u64 sum; /* of the whole words of this block */
	__u64 tail; /* the bytes behind them, up to seven */
	__u64 latest;
	__u64 block_sums[GW_OUTPUT_BLOCKS]; /* a ring of whole blocks */
	__u32 irs;
	__u32 block; /* the one at hand; GW_NO_BLOCK: none */
	__u32 next; /* offset of the first byte that is not in */
	__u32 blocks; /* how many there were: where the ring goes on */
	__u32 run_up; /* words that are read and do not count */
	struct gw_line line;
};

/* Ring buffer record. */
struct gw_event {
	__u64 ns;
	struct gw_flow_key key;
	__u32 irs;
	__u32 share;
	__u32 generation;
	__u32 kind; /* enum gw_event_kind */
	__s32 detail; /* error number, where there is one */
	__u32 place; /* GW_EVENT_UNANSWERED */
};

/* Of a process that has died, as far as it concerns one share. */
enum gw_exit_flags {
	GW_EXIT_LISTENED = 1 << 0, /* it held a listener, perhaps with others */
	GW_EXIT_LAST_LISTENER = 1 << 1, /* nobody listens there any more */
	/* a server died, and not only the one connection that it had */
	GW_EXIT_SERVER = 1 << 2,
	/* it dies, and still has its files: it may be dumping core */
	GW_EXIT_DYING = 1 << 3,
	/* not all of its files were looked at */
	GW_EXIT_CUT = 1 << 4,
};

/* Record of the ring buffer gw_exits. */
struct gw_exit {
	__u64 ns;
	__u32 share;
	__u32 pid;
	__u32 flows; /* sockets of flows that it held */
	__u32 kept; /* of these, silent until another node serves them */
	__u32 flags; /* enum gw_exit_flags */
	__u32 code; /* as wait(2) has it */
	char comm[16];
};

/* A change to one flow that the agent asks for; see gw_order(). */
enum gw_order_kind {
	GW_ORDER_UNGATE = 1, /* owner: let go, `detail` is enum gw_why */
	GW_ORDER_NOT_IN_SYNC = 2, /* shadow: must not be served at a takeover */
	GW_ORDER_END = 3, /* the connection is over */
	GW_ORDER_ACKNOWLEDGED =
		4, /* shadow: the client has acknowledged `detail` */
	GW_ORDER_FORGET = 5, /* remove the entry */
	GW_ORDER_REJOIN = 6, /* owner: tap for a new twin; gw_rejoin.h */
	GW_ORDER_PROTECT = 7, /* owner: that twin may take over */
	GW_ORDER_ADMIT = 8, /* shadow: the twin may be served after all */
	/* rule the question `detail` out; gives enum gw_settlement */
	GW_ORDER_SETTLE = 9,
	GW_ORDER_DROP_LOG = 10, /* its log makes room for those of others */
	GW_ORDER_TURN = 16, /* follow the share, which has changed hands */
	GW_ORDER_TICK = 17, /* start the clock; gw_untimed.h */
};

struct gw_order {
	struct gw_flow_key key;
	__u32 irs; /* guards against a reused four-tuple */
	__u32 kind; /* enum gw_order_kind */
	__u32 detail;
	__u32 base_ack; /* GW_ORDER_REJOIN: where the twin begins to speak */
	__u32 share; /* guards against one that has come to another */
	__u32 pad;
};

/*
 * A running flow that is to have a twin here: the entry as it stands at the
 * first byte of its log. See gw_install().
 */
struct gw_install {
	__u64 rtt_ns;
	struct gw_flow_key key;
	__u32 share;
	__u32 generation;
	__u32 irs;
	__u32 iss;
	__u32 base; /* where the twin begins: the client's first byte, and ... */
	__u32 base_ack; /* ... what the client expected there */
	__u32 snd_una; /* what the client has acknowledged by now */
	__u32 snd_edge; /* right edge of the window that it offers */
	__u32 ts_val; /* latest TSval of the client */
	__u32 owner_ts; /* what the owner's time stamp clock says */
	__u32 flags; /* enum gw_flow_flags, the negotiated ones */
	__u16 mss;
	__u16 syn_ack_mss;
	__u8 snd_wscale;
	__u8 rcv_wscale;
	__u8 client_mac[6];
};

_Static_assert(sizeof(struct gw_install) == 104, "shared with Rust");
_Static_assert(sizeof(struct gw_log) == 56, "shared with Rust");
_Static_assert(sizeof(struct gw_flow) == 368, "shared with Rust, in words");
_Static_assert(sizeof(struct gw_order) == 64, "shared with Rust");
_Static_assert(sizeof(struct gw_endpoint) == 20, "shared with Rust");
_Static_assert(sizeof(struct gw_flow_key) == 40, "shared with Rust");
_Static_assert(sizeof(struct gw_share) == 72, "shared with Rust");
_Static_assert(sizeof(struct gw_handoff) == 64, "shared with Rust");
_Static_assert(sizeof(struct gw_newborn) == 20, "shared with Rust");
_Static_assert(sizeof(struct gw_fence_order) == 16, "shared with Rust");
_Static_assert(sizeof(struct gw_exit) == 48, "shared with Rust");
_Static_assert(sizeof(struct gw_event) == 72, "shared with Rust");
_Static_assert(sizeof(struct gw_verify) == 152, "shared with Rust");
_Static_assert(sizeof(struct gw_output) == 568, "shared with Rust");
_Static_assert(sizeof(struct gw_half_open) == 56, "shared with Rust");

#endif /* GW_H */
