//! Whose a connection is, as a director is told of it by a server that owns two shares of a
//! service (`gw_tell_whose`). This machine is a; it stands by for c, and b for it (`ring.rs`).

use std::time::{Duration, Instant};

use godwit_bpf::Hook;
use godwit_lab::host::{Host, Network};
use godwit_wire::{MacAddr, Role};

use crate::bench::{Bench, DROP, REDIRECT, note};
use crate::ring::{
    MADE, PORT, Slip, TWIN, WARD, ack, from, goes, listen, on_ring, request, with_slip,
};

/// `GW_LEAD_NS`.
const FIRST: Duration = Duration::from_millis(1);

/// What a director is told with its next segment.
fn told(bench: &Bench, v6: bool) -> Option<Vec<u8>> {
    let (verdict, frame) = goes(bench, &ack(v6));
    let is_note = frame[12..14] == [0x88, 0xb5];
    assert_eq!(verdict == REDIRECT, is_note);
    is_note.then_some(frame)
}

/// It is told that the connection is of that server's share.
fn leads_to(bench: &Bench, v6: bool, at: MacAddr) {
    let told = told(bench, v6).expect("it is told");
    assert_eq!(told[12..], note(PORT, v6, at)[12..]);
}

/// A connection has come to the owner of a share, and its twin is here.
fn stand_by(bench: &Bench, v6: bool, owner: Host) {
    let slip = Slip {
        kind: TWIN,
        to: 3,
        from: 1,
        number: 1,
    };
    let twin = with_slip(owner, request(v6), slip);
    bench.expect(Hook::Tap, "a twin", &twin, DROP, MADE);
}

/// The connection goes from a to c with a request, and c fails before a has had another segment
/// to tell the director with. a owns both shares then, and later loses both. The director sent the
/// connection's segments to the next owner of a's share, whose kernel reset it.
#[test]
fn a_director_hears_of_what_went_to_the_ward_before_that_failed() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        bench.connect(PORT, v6);
        bench.expect(Hook::Tap, "request", &request(v6), REDIRECT, "asked");
        stand_by(bench, v6, Host::C);
        let flow = bench.flow();
        assert_eq!((flow.share, flow.twin), (WARD, true));
        bench.take_ward_over(WARD, Host::C);
        leads_to(bench, v6, Host::C.mac(Network::Data));
    });
}

/// So does the one that has come to the own share, from a server whose share is here by now.
#[test]
fn a_director_hears_of_what_came_from_a_ward_that_failed() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        bench.play_own(Host::B, Role::Shadow);
        stand_by(bench, v6, Host::B);
        bench.play_own(Host::B, Role::Owner);
        assert_eq!(told(bench, v6), None, "the ward is another's");
        bench.take_ward_over(WARD, Host::C);
        leads_to(bench, v6, Host::A.mac(Network::Data));
    });
}

/// The note may be lost. One that has arrived is not said for ever.
#[test]
fn a_director_is_told_again_but_ever_more_seldom() {
    on_ring(|bench, v6| {
        let _server = listen(v6);
        stand_by(bench, v6, Host::C);
        bench.take_ward_over(WARD, Host::C);
        let begun = Instant::now();
        let mut notes = 0;
        while begun.elapsed() < 100 * FIRST {
            notes += u32::from(told(bench, v6).is_some());
        }
        let most = begun.elapsed().as_millis().ilog2() + 2;
        assert!((3..=most).contains(&notes), "{notes}");
        // Who is no director is told nothing.
        let by_b = from(Host::B, ack(v6));
        for _ in 0..100 {
            let (_, frame) = goes(bench, &by_b);
            assert_ne!(frame[12..14], [0x88, 0xb5]);
        }
    });
}

/// A connection that begins here, and stays, is where any director looks for it.
#[test]
fn nothing_is_told_of_what_has_not_gone() {
    on_ring(|bench, v6| {
        bench.take_ward_over(WARD, Host::C);
        bench.connect(PORT, v6);
        assert_eq!(told(bench, v6), None);
    });
}
