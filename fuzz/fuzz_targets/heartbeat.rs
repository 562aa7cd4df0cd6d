//! Heartbeats: whatever is read is written back as it was, but for the tag.
#![no_main]

use godwit_wire::Heartbeat;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    let Ok(heartbeat) = Heartbeat::parse(datagram) else {
        return;
    };
    let mut again = Vec::new();
    heartbeat
        .emit_unsigned(&mut again)
        .expect("was read from a datagram");
    assert_eq!(
        Heartbeat::signed_part(&again),
        Heartbeat::signed_part(datagram)
    );
});
