// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One change of a phase or of hands, for tests/hooks/phases.rs. */
/* most of what the headers have is not used here */
#pragma clang diagnostic ignored "-Wunused-function"
#include "flow/gw_phase.h"
#include "flow/gw_turn.h"
#include "flow/gw_watchdog.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct gw_phase_trial {
	__u32 from;
	__u32 to;
	__u32 now;
	__u32 changed;
};

SEC("syscall")
int enter(struct gw_phase_trial *trial)
{
	__u8 phase = trial->from;

	trial->changed = gw_enter(&phase, trial->to);
	trial->now = phase;
	return 0;
}

/* A flow of share `of`, and a segment of which a CPU thinks that it is share `chosen`'s. */
struct gw_follow_trial {
	__u32 of;
	__u32 chosen;
	__u32 roles[2]; /* of shares 0 and 1 */
	__u32 role; /* that the caller plays */
	__u32 followed;
	__u32 flags; /* of the flow, behind it */
	__u32 phase;
};

SEC("syscall")
int follow(struct gw_follow_trial *trial)
{
	struct gw_share *s[2] = { gw_share_at(0), gw_share_at(1) };
	__u32 zero = 0;
	struct gw_flow_words *words = bpf_map_lookup_elem(&gw_scratch, &zero);
	struct gw_flow *f = (struct gw_flow *)words;

	if (!words || !s[0] || !s[1])
		return 1;
	s[0]->role = trial->roles[0];
	s[1]->role = trial->roles[1];
	__builtin_memset(words, 0, sizeof(*words));
	f->share = trial->of;
	gw_flow_enter(f, GW_PHASE_CONFIRMING);
	f->part = gw_part(trial->of ? s[1] : s[0]);
	trial->followed =
		gw_follow(f, trial->chosen ? s[1] : s[0], trial->role);
	trial->flags = f->flags;
	trial->phase = f->phase;
	return 0;
}
