//! Heartbeats as bytes.
