//! Frames through a director's programs, outside of any traffic: for tests and figures.

use std::time::Duration;

use libbpf_rs::ProgramInput;

use super::{Director, Via};
use crate::trial::{CONTEXT_LEN, IFINDEX, ROOM, Trial};

/// What many frames cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The verdict of the last one.
    pub verdict: i32,
    /// Of one frame, on the average.
    pub each: Duration,
}

impl Director {
    /// Runs `frame` through a program as if it had come on interface `ifindex`
    /// (`BPF_PROG_TEST_RUN`). It goes nowhere.
    ///
    /// # Errors
    /// If the kernel takes it for no frame: 14 bytes or fewer, or too long.
    pub fn try_frame(&self, via: Via, ifindex: u32, frame: &[u8]) -> libbpf_rs::Result<Trial> {
        let mut context = [0; CONTEXT_LEN];
        context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
        let mut out = vec![0; frame.len() + ROOM];
        let progs = &self.skel.0.progs;
        let (program, context) = match via {
            Via::Xdp => (&progs.direct, None),
            Via::Tcx => (&progs.direct_tc, Some(&mut context[..])),
        };
        let input = ProgramInput {
            context_in: context,
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let output = program.test_run(input)?;
        Ok(Trial {
            verdict: output.return_value.cast_signed(),
            frame: output.data.map(|data| data.to_vec()).unwrap_or_default(),
            took: output.duration,
        })
    }

    /// Runs `frame`, a TCP segment over IPv4, `repeat` times through the program for
    /// XDP; each time it is the next flow's
    /// ([`trial_flows`](super::Settings::trial_flows)).
    ///
    /// # Errors
    /// If that program was not loaded.
    pub fn load_trial(&self, frame: &[u8], repeat: u32) -> libbpf_rs::Result<Load> {
        let input = ProgramInput {
            data_in: Some(frame),
            repeat,
            ..ProgramInput::default()
        };
        let output = self.skel.0.progs.direct_load.test_run(input)?;
        Ok(Load {
            verdict: output.return_value.cast_signed(),
            each: output.duration,
        })
    }
}
