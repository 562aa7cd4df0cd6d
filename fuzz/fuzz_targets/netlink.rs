//! What the kernel answers on netlink sockets: no datagram panics, or is read
//! for ever.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    // Built with `--cfg fuzzing`, as cargo-fuzz and packaging/fuzz.sh do.
    godwit_sock::answers::read_all(datagram);
});
