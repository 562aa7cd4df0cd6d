//! Socket snapshots: whatever is read is written back and read again as it was.
#![no_main]

use godwit_wire::TcpSnapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(snapshot) = TcpSnapshot::parse(bytes) else {
        return;
    };
    let mut again = Vec::new();
    snapshot.emit(&mut again);
    assert_eq!(TcpSnapshot::parse(&again), Ok(snapshot));
});
