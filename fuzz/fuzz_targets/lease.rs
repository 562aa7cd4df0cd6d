//! Lease datagrams: whatever is read is written back as it was, but for the tag.
#![no_main]

use godwit_wire::{Heartbeat, LeaseDatagram};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    let Ok(lease) = LeaseDatagram::parse(datagram) else {
        return;
    };
    let mut again = Vec::new();
    lease
        .emit_unsigned(&mut again)
        .expect("was read from a datagram");
    assert_eq!(
        Heartbeat::signed_part(&again),
        Heartbeat::signed_part(datagram)
    );
});
