//! Flow records: whatever is read is written back as it was.
#![no_main]

use godwit_wire::FlowRecord;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(record) = FlowRecord::parse(bytes) else {
        return;
    };
    let mut again = Vec::new();
    record.emit(&mut again);
    assert_eq!(again, bytes);
});
