//! A share that moves leaves connections behind that have gone on from it with a request. A
//! director, or another server, may still look for them there, and who gets the share knows
//! nothing of them. It is told where they are, before it owns the share (`gw_bequeath()` in
//! `gw_ring.h`).

use godwit_bpf::TransferEntry;
use godwit_wire::{Endpoint, FlowId, ShareId, node_id};

use super::super::ground::Ground;

/// As many are told of. Behind a director an entry lives for 20 seconds.
const MOST: usize = 16_384;

/// The share is about to go to its standby.
pub(in super::super) fn bequeath(ground: &Ground, share: ShareId) {
    let mut homes = ground.config.homes();
    let service = homes.find_map(|(id, service, _)| (id == share).then_some(service));
    let Some(service) = service.filter(|service| service.is_placed()) else {
        return;
    };
    let Some(heir) = ground.shares.get(share).map(|share| share.entry.peer_mac) else {
        return;
    };
    let ends: Vec<_> = service
        .addresses
        .iter()
        .copied()
        .map(Endpoint::from)
        .collect();
    let (mut found, mut more) = (Vec::new(), 0_u64);
    let scanned = ground
        .datapath
        .requests
        .transfers
        .for_each_entry(|flow, entry| {
            if !ends.contains(&flow.key.service) {
                return;
            }
            if found.len() < MOST {
                found.push((flow, entry));
            } else {
                more += 1;
            }
        });
    if let Err(error) = scanned {
        tracing::warn!(%error, "what has gone on from a share can't be read");
    }
    if more > 0 {
        tracing::warn!(
            more,
            "who gets the share is not told of all that has gone on from it"
        );
    }
    for (flow, entry) in found {
        let Some(at) = place(ground, share, flow, &entry) else {
            continue;
        };
        let Some(frame) = entry.bequest(ground.voice.mac, heir, flow, at) else {
            continue;
        };
        if let Err(error) = ground.voice.settled.send(&frame) {
            tracing::warn!(%error, "who gets the share is not told of what has gone on from it");
            return;
        }
    }
}

/// The number of the server whose share the connection is of by now; 0: the entry says where it
/// has gone. `None`: it is of this share, or nothing is known.
fn place(ground: &Ground, share: ShareId, flow: FlowId, entry: &TransferEntry) -> Option<u32> {
    if entry.has_gone() {
        return Some(0);
    }
    let of = ground.flow(flow)?.share;
    let home = ground.config.home_of(of).filter(|_| of != share)?;
    Some(node_id(home).get())
}
