//! Frames and packets: Ethernet, ARP, neighbour discovery, segments.
#![no_main]

use godwit_wire::{
    ArpPacket, EthernetHeader, NeighbourAdvertisement, NeighbourSolicitation, Segment,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|frame: &[u8]| {
    let Ok((_, packet)) = EthernetHeader::parse(frame) else {
        return;
    };
    if let Ok(arp) = ArpPacket::parse(packet) {
        let mut again = Vec::new();
        arp.emit(&mut again);
        assert!(packet.starts_with(&again));
    }
    let _ = NeighbourAdvertisement::parse(packet);
    let _ = NeighbourSolicitation::parse(packet);
    let _ = Segment::verify(packet);
    if let Ok(segment) = Segment::parse(packet) {
        // Options may be dropped, so the bytes can differ: the meaning cannot.
        // One of nearly 64 KiB may not fit again: options are written at full size.
        let Ok(again) = segment.to_packet() else {
            return;
        };
        assert_eq!(Segment::parse(&again), Ok(segment));
        assert_eq!(Segment::verify(&again), Ok(()));
    }
});
