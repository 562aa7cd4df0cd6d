//! Harness of the end-to-end tests: servers of a lab under Godwit, crashed
//! under the eyes of unmodified clients.
//!
//! Two styles share this crate. A [`Site`] is for tests in which the owner
//! crashes: a lab whose servers run Godwit in sync, with a capture at the
//! client; the test opens connections ([`stream`]), waits until `godwit flows`
//! says that all are protected, lets the owner crash, and checks every byte;
//! [`Site::verify`] then reads the capture: no RST, no second voice, and no
//! [`Misconduct`].
//! [`stage`] and [`traffic`] are for tests in which something else goes wrong,
//! while traffic that has no end of its own goes on.
//!
//! Each test must be able to fail. With [`PLAIN_VARIABLE`] set those of a site
//! run without agents: the service address is moved to the survivor, as a
//! virtual IP would be, and every test about protection fails.
//!
//! Nothing here sleeps for a result: it waits for a condition with a deadline.
#![forbid(unsafe_code)]

pub mod cells;
pub mod change;
mod conduct;
#[cfg(target_arch = "x86_64")]
pub mod eager;
pub mod hostage;
pub mod moving;
pub mod packaged;
pub mod packet;
mod resets;
pub mod resp;
pub mod ring;
pub mod roaming;
pub mod shape;
mod site;
pub mod stage;
pub mod stream;
pub mod traffic;
pub mod unread;
pub mod vigil;
mod wait;

pub use conduct::{Misconduct, misconduct};
pub use resets::live_resets;
pub use site::{PLAIN_VARIABLE, Site, lab};
pub use wait::{DEADLINE, STALL_LIMIT, until, until_some};
