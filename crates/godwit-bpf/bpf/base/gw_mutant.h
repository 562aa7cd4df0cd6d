/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Mutants: builds that leave one mechanism out, for `godwit chaos` to find
 * (docs/testing.md). Never in a build without MUTANT in the environment
 * (build.rs); the agent of one that has it says so at its start.
 */
#ifndef GW_MUTANT_H
#define GW_MUTANT_H

enum gw_mutant {
	GW_MUTANT_NONE,
	/* an owner speaks on when its lease has ended */
	GW_MUTANT_NO_FENCE,
	/* clients are told what the owner has, whatever the twin has */
	GW_MUTANT_NO_GATE,
	/* a twin has its own kernel's clock, also after a takeover */
	GW_MUTANT_NO_TIMESTAMP_OFFSET,
	/* notes are believed whatever their tag */
	GW_MUTANT_NO_PROOF,
};

#ifndef GW_MUTANT
#define GW_MUTANT GW_MUTANT_NONE
#endif

#endif /* GW_MUTANT_H */
