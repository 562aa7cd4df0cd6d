//! One binary: agent, status, flows, events, doctor, demo, bench, pki.
#![forbid(unsafe_code)]
fn main() {}
