//! Frames put through the hooks one at a time (`BPF_PROG_TEST_RUN`), in a
//! lab's namespace: what comes out, and what it was counted as. Needs root.

mod asked;
mod bench;
mod children;
mod cost;
mod crowd;
mod director;
mod director_links;
mod edge;
mod fence;
mod first;
mod gate;
mod guard;
mod handoff;
mod late;
mod life;
mod malformed;
mod moves;
mod policy;
mod process;
mod proof;
mod random;
mod rejoin;
mod ring;
mod rings;
mod scan;
mod settle;
mod sound;
mod spoofed;
mod stamps;
mod steer;
mod talk;
mod transfer;
mod verify;
mod vouched;
