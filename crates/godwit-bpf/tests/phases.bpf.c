// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One change of a phase, for tests/hooks/phases.rs. */
#include "flow/gw_phase.h"

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
