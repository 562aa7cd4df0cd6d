//! Where leases do not end: who is powered off before his share is taken, or his consent
//! done without.

use super::*;

#[test]
fn of_two_voters_the_silent_one_is_powered_off_first() {
    let (mut proposer, epoch) = candidate(true, &["a", "b"], Some((10, 4)));
    let held = |epoch| refused(epoch, 0, Refusal::Held, (10, "b"), 0);
    proposer.handle_message(name("a"), &held(epoch), ms(101));
    assert_eq!(messages(&mut proposer), []);
    proposer.handle_timeout(ms(110));
    proposer.handle_timeout(ms(131));
    let node = name("b");
    assert_eq!(events(&mut proposer), [LeaseEvent::FenceWanted { node }]);
    messages(&mut proposer);

    proposer.handle_fenced(node, ms(200));
    proposer.handle_timeout(ms(200));
    let [LeaseMessage::Prepare { epoch, .. }] = messages(&mut proposer)[..] else {
        panic!("at once");
    };
    proposer.handle_message(name("a"), &held(epoch), ms(200));
    let [LeaseMessage::Prepare { epoch, void, .. }] = messages(&mut proposer)[..] else {
        panic!("with its lease void");
    };
    assert_eq!(void, Epoch(10));
    let last = Lease {
        in_sync: vec![stay("a", 4)],
        term_ns: Lease::ENDLESS,
        ..lease("b", 10, 1)
    };
    proposer.handle_message(name("a"), &promise(epoch, Some(last)), ms(200));
    let (number, _, lease) = number(&mut proposer);
    assert_eq!(lease.term_ns, Lease::ENDLESS);
    proposer.handle_message(name("a"), &accepted(epoch, number), ms(200));
    let granted = LeaseEvent::Granted {
        epoch,
        member: true,
    };
    assert_eq!(events(&mut proposer)[0], granted);
    assert_eq!(proposer.expiry(), None);
    assert!(proposer.is_in_force(MonoTime(u64::MAX - 1)));
}

#[test]
fn of_two_voters_one_that_refuses_is_left_its_power() {
    let (mut proposer, epoch) = candidate(true, &["a", "b"], None);
    let held = refused(epoch, 0, Refusal::Held, (10, "b"), 0);
    for voter in ["a", "b"] {
        proposer.handle_message(name(voter), &held, ms(101));
    }
    for at in (101..140).step_by(10) {
        proposer.handle_timeout(ms(at));
        assert_eq!(events(&mut proposer), []);
    }
}

#[test]
fn a_silent_standby_is_powered_off_before_its_gates_open() {
    let set = vec![stay("b", 4)];
    let mut proposer = Proposer::resume(
        config(true, &["a", "b"]),
        Epoch(10),
        MonoTime(u64::MAX),
        set,
        ms(100),
    );
    let revision = proposer.handle_in_sync(Vec::new(), ms(100));
    proposer.handle_timeout(ms(100));
    let (number, ..) = number_of_proposal(&mut proposer);
    proposer.handle_message(name("a"), &accepted(Epoch(10), number), ms(100));
    assert_eq!(events(&mut proposer), [], "its consent is needed");
    let mut wanted = false;
    for at in (110..=170).step_by(10) {
        proposer.handle_timeout(ms(at));
        let (number, ..) = number_of_proposal(&mut proposer);
        proposer.handle_message(name("a"), &accepted(Epoch(10), number), ms(at));
        let node = name("b");
        wanted = events(&mut proposer) == [LeaseEvent::FenceWanted { node }];
        assert_eq!(wanted, at >= 160, "{at}");
    }
    assert!(wanted);
    proposer.handle_fenced(name("b"), ms(171));
    proposer.handle_timeout(ms(171));
    let (number, ..) = number_of_proposal(&mut proposer);
    proposer.handle_message(name("a"), &accepted(Epoch(10), number), ms(171));
    assert!(events(&mut proposer).contains(&LeaseEvent::Agreed { revision }));
}
