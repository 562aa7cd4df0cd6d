//! Socket snapshots, alone and on their way to another server: whatever is read is written back and read again as it was.
#![no_main]

use godwit_wire::TcpSnapshot;
use godwit_wire::snapshot::Moved;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(moved) = Moved::parse(bytes) {
        let mut again = Vec::new();
        moved.emit(&mut again);
        assert_eq!(Moved::parse(&again), Ok(moved));
    }
    let Ok(snapshot) = TcpSnapshot::parse(bytes) else {
        return;
    };
    let mut again = Vec::new();
    snapshot.emit(&mut again);
    assert_eq!(TcpSnapshot::parse(&again), Ok(snapshot));
});
