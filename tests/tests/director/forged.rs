//! Anybody can send a SYN with the addresses and ports of somebody else's connection
//! (RFC 5961 section 4).

use std::collections::BTreeSet;

use godwit_lab::LabOptions;
use godwit_lab::host::{Host, Network};
use godwit_tests::stage::{stage, until};
use godwit_wire::{EthernetHeader, Segment, SeqNumber, TcpFlags, TcpOptions};

use super::{BACKENDS, Front, Regular, all_stay, names, on_lab, options};

/// With so many sequence numbers each.
const TRIES: u32 = 40;

/// SYNs as if from the client of each, by way of the director.
fn forge(front: &Front<'_>, regulars: &[Regular], round: u32) {
    let director = Host::Director.mac(Network::Data);
    let own = Host::Attacker.mac(Network::Data);
    let mut frames = Vec::new();
    for (number, regular) in (0..).zip(regulars) {
        let local = regular.stream.local_addr().expect("it is connected");
        let service = regular.stream.peer_addr().expect("it is connected");
        for attempt in 0..TRIES {
            let seq = (round * 1000 + number * TRIES + attempt).wrapping_mul(0x9e37_79b9);
            let segment = Segment {
                source: local.into(),
                destination: service.into(),
                seq: SeqNumber(seq),
                ack: SeqNumber(0),
                flags: TcpFlags::SYN,
                wnd: 1000,
                options: TcpOptions::default(),
                payload: b"",
            };
            let packet = segment.to_packet().expect("it is short");
            frames.push(EthernetHeader::frame_ip(director, own, &packet));
        }
    }
    let attacker = front.lab.node(Host::Attacker);
    attacker.send_frames(&frames).expect("frames are sent");
}

/// The director and its back-ends demand tags of each other.
fn wait_demanded(front: &Front<'_>) {
    let says = |host: Host, of: &BTreeSet<String>| {
        let Ok(status) = front.cluster.status(host) else {
            return false;
        };
        let demanded = status
            .peers
            .iter()
            .filter(|it| it.tags.as_deref() == Some("demanded"));
        let demanded: BTreeSet<_> = demanded.map(|it| it.name.clone()).collect();
        demanded.is_superset(of)
    };
    let (own, back_ends) = (names(&[Host::Director]), names(&BACKENDS));
    until("tags are demanded", || {
        let all = says(Host::Director, &back_ends) && BACKENDS.into_iter().all(|it| says(it, &own));
        all.then_some(())
    });
}

/// Neither in slots that have changed, nor in those that have not.
#[test]
fn a_forged_syn_ends_no_connection() {
    let Some(lab) = stage(LabOptions {
        third: true,
        director: true,
        attacker: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    on_lab(&lab, options(), |front| {
        wait_demanded(front);
        let mut regulars = front.connect(48);
        forge(front, &regulars, 0);
        all_stay(&mut regulars);
        front.drain(&["b"]);
        front.wait_takers(&[Host::A, Host::C]);
        // Those of b are where their slots do not lead any more; new ones are elsewhere.
        forge(front, &regulars, 1);
        all_stay(&mut regulars);
        assert!(front.counted("directed_asked") > 0);
        let mut later = front.connect(24);
        assert!(later.iter().all(|it| it.server != "b"));
        front.drain(&["b", "--undo"]);
        front.wait_takers(&BACKENDS);
        // Those have entries, which lead away from b.
        regulars.append(&mut later);
        forge(front, &regulars, 2);
        all_stay(&mut regulars);
        assert_eq!(front.curls(32), names(&BACKENDS));
        assert_eq!(front.counted("no_backend"), 0);
        // What back-ends answer is proved.
        for reason in ["tag_wrong", "tag_missing", "answer_stale"] {
            assert_eq!(front.counted(reason), 0, "{reason}");
        }
    });
}
