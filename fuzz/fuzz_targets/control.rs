//! Requests on the control socket: whatever is read is written as one that
//! means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The module alone: the agent itself would bring libbpf along.
#[path = "../../crates/godwit-agent/src/control/request.rs"]
mod request;

use request::Request;

fuzz_target!(|line: &[u8]| {
    let Ok(request) = serde_json::from_slice::<Request>(line) else {
        return;
    };
    let again = serde_json::to_vec(&request).expect("it is plain data");
    let again = serde_json::from_slice::<Request>(&again).expect("was just written");
    assert_eq!(again, request);
    if let Request::Stop { reason } = request {
        let _ = godwit_wire::GoodbyeReason::from(reason);
    }
});
