//! Sockets of the agent that are no ordinary ones, and the kernel's view of
//! the network: raw segments and frames, neighbours, addresses, ending a
//! socket of another process.
//!
//! Everything here acts in the network namespace of the calling thread.
//! [`repair`] takes live connections out of the kernel and puts them back.
//! `unsafe` is for calls that nix lacks.

mod address;
mod alarm;
#[cfg(any(test, fuzzing))]
pub mod answers;
mod claims;
mod destroy;
mod device;
mod ends;
mod filter;
mod foreign;
mod interface;
mod listeners;
mod namespace;
mod neighbour;
mod netlink;
mod offload;
mod option;
mod passing;
mod pinned;
mod raw;
pub mod repair;
mod route;
mod ruleset;
mod seccomp;
mod sieve;
mod sockets;
mod stream;
mod tun;
mod turns;
mod unaccepted;
mod view;
mod watch;

pub use address::{add_address, added_addresses, addresses, remove_address};
pub use claims::{ClaimWatch, Heard};
pub use destroy::{Destroyer, Waiting, destroy_tcp, has_tcp_socket, waiting_bytes};
pub use device::{Device, Devices};
pub use ends::connection_of;
pub use filter::{leave_out, take_in};
pub use foreign::{ForeignProcess, Holders, holds_socket};
pub use interface::{Interface, InterfaceError, join_group};
pub use listeners::{AcceptQueue, Listener, Listeners};
pub use namespace::{netns_cookie, netns_cookie_of};
pub use neighbour::{ask_neighbour, is_unanswered, neighbour};
pub use offload::{OFFLOAD_HEADER, ignore_outgoing, keep_offload};
pub use option::{option, set_option, socket_cookie};
pub use passing::{MAX_PASSED, Received, receive, receive_with, send_with};
pub use pinned::{Pinned, is_in_memory};
pub use raw::{FrameSender, SegmentSender};
pub use route::{Way, is_local, next_hop, way};
pub use ruleset::{Drops, Refusal, RulesetWatch, legacy_refusals, refusals};
pub use seccomp::filter_system_calls;
pub use sieve::{Wanted, dropped_datagrams, take_all_datagrams, take_datagrams};
pub use sockets::{Served, connections_at, served_at, without_tcp_socket};
pub use stream::StreamPosition;
pub use tun::{HoldTun, only_repeats};
pub use turns::take_short_turns;
pub use unaccepted::{ForeignListener, ListenerError, Widened, unaccepted};
pub use view::{SocketView, SocketViewer, view_tcp_socket};
pub use watch::{Changes, NetworkWatch};
