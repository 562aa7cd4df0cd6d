//! One frame through one hook, outside of any traffic: for tests.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Program, ProgramInput};

use crate::Datapath;

/// A program in the path of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Ingress of the service interface.
    Tap,
    /// Egress of the service interface.
    Gate,
    /// Egress of every other interface.
    Guard,
    /// The end of a director's tunnel, before [`Hook::Tap`].
    Untunnel,
    /// What has the place of [`Hook::Tap`] while that moves.
    ClosedTap,
    /// What has the place of [`Hook::Gate`] while that moves.
    ClosedGate,
}

/// What a hook did to a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// The tcx verdict: -1 next, 2 drop, 7 redirect (`linux/bpf.h`).
    pub verdict: i32,
    /// The frame as the hook left it.
    pub frame: Vec<u8>,
    /// How long the hook took, as the kernel has measured it.
    pub took: Duration,
}

/// Bytes from the start of `struct __sk_buff` to the end of its `ifindex`.
pub(crate) const CONTEXT_LEN: usize = 192;
/// Offset of `mark` in `struct __sk_buff`.
const MARK: usize = 8;
/// Offset of `ifindex` in `struct __sk_buff`.
pub(crate) const IFINDEX: usize = 40;
/// A hook may lengthen a frame, by options, a slip, or what a tunnel needs.
pub(crate) const ROOM: usize = 256;

impl Datapath {
    /// Runs `frame` through `hook` as if it were on interface `ifindex`
    /// (`BPF_PROG_TEST_RUN`). What the hook clones does leave; a redirect of the
    /// frame itself is only its verdict.
    ///
    /// # Errors
    /// If the kernel takes it for no frame: 14 bytes or fewer, or too long.
    pub fn try_frame(&self, hook: Hook, ifindex: u32, frame: &[u8]) -> libbpf_rs::Result<Trial> {
        self.try_marked_frame(hook, ifindex, 0, frame)
    }

    /// As [`Datapath::try_frame`], for a frame that carries a mark (`SO_MARK`).
    ///
    /// # Errors
    /// As there.
    pub fn try_marked_frame(
        &self,
        hook: Hook,
        ifindex: u32,
        mark: u32,
        frame: &[u8],
    ) -> libbpf_rs::Result<Trial> {
        let mut context = context(ifindex, mark);
        let mut out = vec![0; frame.len() + ROOM];
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let output = self.program(hook).test_run(input)?;
        Ok(Trial {
            verdict: output.return_value.cast_signed(),
            frame: output.data.map(|data| data.to_vec()).unwrap_or_default(),
            took: output.duration,
        })
    }

    /// How many instructions the verifier has looked at, by program.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn verified(&self) -> libbpf_rs::Result<BTreeMap<String, u32>> {
        let mut verified = BTreeMap::new();
        for program in self.programs() {
            let id = Program::id_from_fd(program.as_fd())?;
            let info = ProgInfoIter::default().find(|info| info.id == id);
            if let Some(info) = info {
                let name = program.name().to_string_lossy().into_owned();
                verified.insert(name, info.verified_insns);
            }
        }
        Ok(verified)
    }

    /// How long one run of that takes.
    ///
    /// # Errors
    /// As there.
    pub fn time_marked_frame(
        &self,
        hook: Hook,
        ifindex: u32,
        mark: u32,
        frame: &[u8],
    ) -> libbpf_rs::Result<Duration> {
        let mut context = context(ifindex, mark);
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            ..ProgramInput::default()
        };
        Ok(self.program(hook).test_run(input)?.duration)
    }
}

/// What a program is told of a frame besides its bytes.
fn context(ifindex: u32, mark: u32) -> [u8; CONTEXT_LEN] {
    let mut context = [0; CONTEXT_LEN];
    context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
    context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    context
}
