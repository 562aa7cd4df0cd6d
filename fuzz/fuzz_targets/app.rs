//! What a server process tells its agent, and what it enters into the region
//! that they share: whatever is read is written back and read again as it was.
#![no_main]

use godwit_wire::app::AppMessage;
use godwit_wire::app::region::{Connection, Header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = AppMessage::parse(bytes) {
        let mut again = Vec::new();
        message.emit(&mut again);
        assert_eq!(AppMessage::parse(&again), Ok(message));
    }
    if let Ok(Some(connection)) = Connection::parse(bytes) {
        let mut again = Vec::new();
        connection.emit(&mut again);
        assert_eq!(Connection::parse(&again), Ok(Some(connection)));
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = Header::parse(header);
    }
});
