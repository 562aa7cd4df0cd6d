//! System calls made by another process, as code that has taken it over would
//! make them.

use anyhow::{Context as _, Result, ensure};
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::wait::until_some;

/// The instruction `syscall`, which is two bytes long.
const SYSCALL: u64 = 0x050f;

/// A thread of another process that stands, about to begin the call that it was
/// in again. It goes on when this is dropped.
#[derive(Debug)]
pub struct Hostage {
    thread: Pid,
    before: user_regs_struct,
}

impl Hostage {
    /// Stops a thread while it waits in a system call.
    ///
    /// # Errors
    /// Fails if it is gone, or always computes.
    pub fn take(thread: Pid) -> Result<Self> {
        ptrace::seize(thread, Options::empty())?;
        until_some("a thread to be in a system call", || {
            ptrace::interrupt(thread)?;
            wait(thread)?;
            let before = ptrace::getregs(thread)?;
            let hostage = Self { thread, before };
            if hostage.is_in_call()? {
                return Ok(Some(hostage));
            }
            std::mem::forget(hostage);
            ptrace::cont(thread, None)?;
            Ok(None)
        })
    }

    fn is_in_call(&self) -> Result<bool> {
        let code = ptrace::read(self.thread, self.instruction() as ptrace::AddressType)?;
        let waits = self.before.orig_rax.cast_signed() >= 0;
        Ok(waits && code.cast_unsigned() & 0xffff == SYSCALL)
    }

    const fn instruction(&self) -> u64 {
        self.before.rip.wrapping_sub(2)
    }

    /// What the kernel returns: below 0 an error's number.
    ///
    /// # Errors
    /// Fails if the thread ends instead.
    pub fn call(&self, number: nix::libc::c_long, arguments: [u64; 6]) -> Result<i64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let call = user_regs_struct {
            rip: self.instruction(),
            rax: number.cast_unsigned(),
            // Not in a call that could be restarted.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.before
        };
        ptrace::setregs(self.thread, call)?;
        ptrace::step(self.thread, None)?;
        wait(self.thread)?;
        let after = ptrace::getregs(self.thread)?;
        ensure!(after.rip == self.before.rip, "it is elsewhere: {after:?}");
        Ok(after.rax.cast_signed())
    }
}

impl Drop for Hostage {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = ptrace::setregs(self.thread, self.before);
        let _ = ptrace::detach(self.thread, None);
    }
}

fn wait(thread: Pid) -> Result<()> {
    let status = waitpid(thread, Some(WaitPidFlag::__WALL)).context("waiting for a thread")?;
    let stands = matches!(
        status,
        WaitStatus::Stopped(..) | WaitStatus::PtraceEvent(..)
    );
    ensure!(stands, "{status:?}");
    Ok(())
}
