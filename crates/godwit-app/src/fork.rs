//! Which process this is.
//!
//! What the library knows belongs to one process. A child has a copy of the
//! memory, but not the thread, nor the region; a lock that another thread held at
//! the fork is held for ever. So a child starts afresh: it does not look at what
//! its parent had.

use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use crate::process::Process;

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// The connection to the agent: a child that kept it open would let the agent
/// believe that a parent which has died lives on.
static LINK: AtomicI32 = AtomicI32::new(NONE);
const NONE: RawFd = -1;

/// What the library knows in this process, if it has been used here.
pub(crate) fn existing() -> Option<&'static Process> {
    // SAFETY: what is stored there was leaked, so it lives for ever.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// As [`existing`], made now if it was not there.
pub(crate) fn current() -> &'static Process {
    if let Some(process) = existing() {
        return process;
    }
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler stores one pointer, which is allowed in a child of a
        // process with threads. If there is no memory for it, children must not
        // use the library: they would take it for their parent's.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
    let fresh = Box::into_raw(Box::new(Process::new()));
    let none = ptr::null_mut();
    let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
    match CURRENT.compare_exchange(none, fresh, set, get) {
        Ok(_) => {
            // SAFETY: just made, and leaked.
            let process = unsafe { &*fresh };
            process.start();
            process
        }
        Err(other) => {
            // SAFETY: just made, and nobody else has seen it.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: leaked by whoever was first.
            unsafe { &*other }
        }
    }
}

/// Says which descriptor is not for children.
pub(crate) fn own_link(link: Option<BorrowedFd<'_>>) {
    let number = link.map_or(NONE, |link| link.as_raw_fd());
    LINK.store(number, Ordering::Release);
}

/// Runs in a child, where only calls that are safe in a signal handler are.
extern "C" fn forget() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
    let link = LINK.swap(NONE, Ordering::AcqRel);
    if link != NONE {
        // SAFETY: the child's copy; nothing in the child knows the number.
        unsafe { libc::close(link) };
    }
}
