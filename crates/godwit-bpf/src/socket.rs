//! What a kernel keeps to itself of a socket that is moved (`socket.bpf.c`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use godwit_wire::snapshot::{Hidden, Traits};
use godwit_wire::{SeqNumber, TcpSnapshot};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, OpenObject};
use nix::sys::socket::{setsockopt, sockopt};
use thiserror::Error;

use crate::cgroup;
use crate::convert::{bytes_of, value_of};
use crate::socket_skel::{SocketSkelBuilder, types};
use types::gw_hidden_flags as Flag;

const _: () = assert!(size_of::<types::gw_hidden>() == 56);
const _: () = assert!(size_of::<types::gw_congestion>() == 12);

/// `GW_SOL_HIDDEN` and `GW_SO_HIDDEN` of `gw_socket.h`.
const SOL_HIDDEN: libc::c_int = 0x6777;
const SO_HIDDEN: libc::c_int = 1;

/// Why live sockets can't be moved exactly on this machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelViewError {
    /// The control groups of version 2 are not mounted, or not readable.
    #[error("no control group file system of version 2")]
    NoCgroups(#[source] io::Error),
    /// The kernel lacks `bpf_rdonly_cast` (6.2), or a capability is missing.
    #[error("can't load the programs that look into a socket")]
    Load(#[source] libbpf_rs::Error),
    /// The kernel refused the program, or its name is taken.
    #[error("can't attach {program}")]
    Attach {
        /// Program name.
        program: &'static str,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
}

/// Looks into sockets in repair mode, and gives restored ones what no socket
/// option sets. Whoever has a TCP socket is told where its application stands
/// (`StreamPosition` of godwit-sock).
///
/// While it lives, every `getsockopt` on the machine passes a short program;
/// dropped, it leaves nothing behind. It answers for sockets of the control
/// groups below the one that this process sees as the root.
#[derive(Debug)]
pub struct KernelView {
    _hidden: Link,
    _carry: Link,
    congestions: MapHandle,
    carrier: String,
}

impl KernelView {
    /// Loads and attaches the programs. Needs CAP_BPF, CAP_PERFMON and
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// If the kernel lacks something, see [`KernelViewError`].
    pub fn open() -> Result<Self, KernelViewError> {
        let root = cgroup::root().map_err(KernelViewError::NoCgroups)?;
        let carrier = cgroup::congestion_name();
        let mut object = Box::new(MaybeUninit::<OpenObject>::uninit());
        let mut open = SocketSkelBuilder::default()
            .open(&mut object)
            .map_err(KernelViewError::Load)?;
        for (place, byte) in open.struct_ops.gw_carry_mut().name.iter_mut().zip(
            // What follows is zero: the name ends with one.
            carrier.bytes().chain([0; 16]),
        ) {
            *place = byte.cast_signed();
        }
        let mut skel = open.load().map_err(KernelViewError::Load)?;
        let attached = |program| move |source| KernelViewError::Attach { program, source };
        let carry = skel.maps.gw_carry.attach_struct_ops();
        let hidden = skel.progs.hidden.attach_cgroup(root.as_raw_fd());
        Ok(Self {
            _carry: carry.map_err(attached("gw_carry"))?,
            _hidden: hidden.map_err(attached("hidden"))?,
            congestions: MapHandle::try_from(&skel.maps.gw_congestions)
                .map_err(KernelViewError::Load)?,
            carrier,
        })
    }

    /// What no socket option tells of a TCP socket.
    ///
    /// # Errors
    /// If it is no TCP socket, not in repair mode, or of another
    /// control group tree.
    pub fn hidden(&self, socket: BorrowedFd<'_>) -> io::Result<Hidden> {
        let mut bytes = [0; size_of::<types::gw_hidden>()];
        let mut length = libc::socklen_t::try_from(bytes.len()).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes, which `bytes` has.
        let err = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                SOL_HIDDEN,
                SO_HIDDEN,
                bytes.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if err != 0 {
            return Err(io::Error::last_os_error());
        }
        value_of(&bytes)
            .map(told)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Has a restored socket go on with the congestion window and slow start
    /// threshold that it had, with ECN if it had that, under the algorithm that
    /// it had.
    ///
    /// # Errors
    /// If the kernel has no such algorithm, or refuses; the socket may then be
    /// under the one that carries.
    pub fn carry(&self, socket: BorrowedFd<'_>, snapshot: &TcpSnapshot) -> io::Result<()> {
        let congestion = &snapshot.congestion;
        let key = socket.as_raw_fd().to_ne_bytes();
        let former = types::gw_congestion {
            // 0 would stop it for good.
            snd_cwnd: congestion.snd_cwnd.max(1),
            snd_ssthresh: congestion.snd_ssthresh.max(2),
            ecn: snapshot.options.ecn.into(),
        };
        self.congestions
            .update(&key, bytes_of(&former), MapFlags::ANY)
            .map_err(io::Error::other)?;
        let algorithm = |name: &[u8]| {
            let name = std::ffi::OsString::from(String::from_utf8_lossy(name).into_owned());
            setsockopt(&socket.as_fd(), sockopt::TcpCongestion, &name)
        };
        let carried = algorithm(self.carrier.as_bytes());
        let then = algorithm(&congestion.name);
        // It goes with the socket if it can't be removed.
        let _ = self.congestions.delete(&key);
        Ok(carried.and(then)?)
    }
}

fn told(hidden: types::gw_hidden) -> Hidden {
    let is = |flag: Flag| hidden.flags & flag.0 != 0;
    Hidden {
        ahead_ns: hidden.ahead_ns,
        copied_seq: SeqNumber(hidden.copied_seq),
        rcv_nxt: SeqNumber(hidden.rcv_nxt),
        snd_una: SeqNumber(hidden.snd_una),
        snd_nxt: SeqNumber(hidden.snd_nxt),
        write_seq: SeqNumber(hidden.write_seq),
        snd_cwnd: hidden.snd_cwnd,
        snd_ssthresh: hidden.snd_ssthresh,
        srtt_us: hidden.srtt_us,
        mdev_us: hidden.mdev_us,
        data_segs_in: hidden.data_segs_in,
        ts_recent: hidden.ts_recent,
        traits: Traits {
            is_urgent: is(Flag::GW_HIDDEN_URGENT),
            is_out_of_order: is(Flag::GW_HIDDEN_OUT_OF_ORDER),
            is_signed: is(Flag::GW_HIDDEN_SIGNED),
            is_layered: is(Flag::GW_HIDDEN_LAYERED),
            is_taken: is(Flag::GW_HIDDEN_TAKEN),
        },
    }
}
