//! Programs of type `syscall`: run on behalf of the agent, in the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use libbpf_rs::ProgramMut;
use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};

use crate::convert::{Plain, bytes_of};

/// A loaded program that takes a `T`.
#[derive(Debug)]
pub(crate) struct SyscallProgram<T> {
    program: OwnedFd,
    context: std::marker::PhantomData<fn(T)>,
}

impl<T: Plain> SyscallProgram<T> {
    pub(crate) fn new(program: &ProgramMut<'_>) -> io::Result<Self> {
        Ok(Self {
            program: program.as_fd().try_clone_to_owned()?,
            context: std::marker::PhantomData,
        })
    }

    /// Runs it once; what it returned.
    pub(crate) fn call(&self, context: &T) -> io::Result<u32> {
        let bytes = bytes_of(context);
        let mut opts = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as u64,
            ctx_in: bytes.as_ptr().cast(),
            ctx_size_in: u32::try_from(bytes.len()).unwrap_or(0),
            ..bpf_test_run_opts::default()
        };
        // SAFETY: the descriptor is a loaded syscall program; opts says its own
        // size and points to a context that outlives the call.
        let err = unsafe { bpf_prog_test_run_opts(self.program.as_fd().as_raw_fd(), &mut opts) };
        if err == 0 {
            Ok(opts.retval)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
