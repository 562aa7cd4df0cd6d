//! All (state, input) pairs of the role machine, and its timing.

use super::*;

const A: PeerId = PeerId(0);
const C: PeerId = PeerId(1);
/// The epoch of the owner that a standby knows.
const KNOWN: Epoch = Epoch::new(50, 1);
const LOWER: Epoch = Epoch::new(49, 1);
const HIGHER: Epoch = Epoch::new(60, 1);
const GENERATION: Generation = Generation(4);
const OWNED_BY_A: Ownership = Ownership {
    peer: A,
    epoch: KNOWN,
};

fn ms(ms: u64) -> MonoTime {
    MonoTime(ms * 1_000_000)
}

fn config(primary: bool, peers: &[PeerId]) -> Config {
    Config {
        claiming: Claiming::Bare,
        ballot: Ballot::new(40, u32::from(!primary), 3),
        primary,
        peers: peers.to_vec(),
        startup_grace: Duration::from_millis(300),
    }
}

fn says(peer: PeerId, role: Role, epoch: Epoch) -> PeerClaim {
    PeerClaim {
        peer,
        role,
        epoch,
        wins_ties: false,
    }
}

const STARTING: State = State::Starting { until: ms_3000() };
const STANDBY: State = State::Standby {
    owner: Some(OWNED_BY_A),
};
const ORPHAN: State = State::Standby { owner: None };
const SHADOW: State = State::Shadow {
    owner: OWNED_BY_A,
    generation: GENERATION,
};

const fn ms_3000() -> MonoTime {
    MonoTime(3_000_000_000)
}

/// A backup in `state`; its own epoch is `KNOWN` if it owns.
fn machine_in(state: State) -> ShareMachine {
    match state {
        State::Starting { .. } => ShareMachine::new(config(false, &[A]), ms(0)),
        State::Standby { .. } | State::Shadow { .. } | State::Owner | State::Quitting => {
            ShareMachine::resume(config(false, &[A]), state, KNOWN)
        }
    }
}

type Input = (&'static str, fn(&mut ShareMachine));

/// Everything that can happen, at one second.
const INPUTS: [Input; 19] = [
    ("owner, lower epoch", |m| {
        m.handle_claim(says(A, Role::Owner, LOWER), ms(1000))
    }),
    ("owner, same epoch", |m| {
        m.handle_claim(says(A, Role::Owner, KNOWN), ms(1000))
    }),
    ("owner, higher epoch", |m| {
        m.handle_claim(says(A, Role::Owner, HIGHER), ms(1000))
    }),
    ("idle, same epoch", |m| {
        m.handle_claim(says(A, Role::None, KNOWN), ms(1000))
    }),
    ("idle, higher epoch", |m| {
        m.handle_claim(says(A, Role::None, HIGHER), ms(1000))
    }),
    ("shadow, same epoch", |m| {
        m.handle_claim(says(A, Role::Shadow, KNOWN), ms(1000))
    }),
    ("failed", |m| m.handle_failed(A)),
    ("stranger failed", |m| m.handle_failed(C)),
    ("restart", |m| m.handle_goodbye(A, GoodbyeReason::Restart)),
    ("detach", |m| m.handle_goodbye(A, GoodbyeReason::Detach)),
    ("shutdown", |m| m.handle_goodbye(A, GoodbyeReason::Shutdown)),
    ("admitted", |m| m.handle_admitted(Generation(5))),
    ("dismissed", |m| m.handle_dismissed(GENERATION)),
    ("dismissed from another stay", |m| {
        m.handle_dismissed(Generation(3))
    }),
    ("owner's server lost", |m| {
        m.handle_owner_server_lost(GENERATION)
    }),
    ("owner's server lost in another stay", |m| {
        m.handle_owner_server_lost(Generation(3))
    }),
    ("server lost", |m| m.handle_retired(Reason::ServerLost)),
    ("timeout", |m| m.handle_timeout(ms(3000))),
    ("quit", ShareMachine::handle_quit),
];

/// The state after each of `INPUTS`, and the reason if it changed.
type Row = [(State, Option<Reason>); INPUTS.len()];

fn check(state: State, row: Row) {
    for ((name, input), (after, reason)) in INPUTS.into_iter().zip(row) {
        let mut machine = machine_in(state);
        let epoch = machine.epoch();
        input(&mut machine);
        assert_eq!(machine.state(), after, "{} and {name}", state.as_str());
        let change = machine.poll_change();
        assert_eq!(
            change.map(|change| change.reason),
            reason,
            "{} and {name}",
            state.as_str()
        );
        assert_eq!(machine.poll_change(), None);
        assert!(machine.epoch() >= epoch, "epochs only grow");
        if let Some(change) = change {
            assert_eq!((change.prev, change.state), (state, after));
        }
    }
}

const fn standby_of(epoch: Epoch) -> State {
    State::Standby {
        owner: Some(Ownership { peer: A, epoch }),
    }
}

/// Where a backup listens again after one second.
const RESTARTED: State = State::Starting {
    until: MonoTime(4_000_000_000),
};

#[test]
fn starting() {
    let stays = (STARTING, None);
    check(
        STARTING,
        [
            (standby_of(LOWER), Some(Reason::PeerOwns)),
            (standby_of(KNOWN), Some(Reason::PeerOwns)),
            (standby_of(HIGHER), Some(Reason::PeerOwns)),
            stays, // a backup leaves the claim to the primary
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            (State::Owner, Some(Reason::ColdStart)),
            (State::Quitting, Some(Reason::Quit)),
        ],
    );
}

#[test]
fn standby() {
    let stays = (STANDBY, None);
    let admitted = State::Shadow {
        owner: OWNED_BY_A,
        generation: Generation(5),
    };
    check(
        STANDBY,
        [
            stays,
            stays,
            (standby_of(HIGHER), Some(Reason::PeerOwns)),
            (RESTARTED, Some(Reason::OwnerForgot)),
            (RESTARTED, Some(Reason::OwnerForgot)),
            (RESTARTED, Some(Reason::OwnerForgot)),
            (State::Owner, Some(Reason::OwnerFailed)),
            stays,
            stays,
            (ORPHAN, Some(Reason::OwnerDetached)),
            (State::Owner, Some(Reason::OwnerShutdown)),
            (admitted, Some(Reason::Admitted)),
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            (State::Quitting, Some(Reason::Quit)),
        ],
    );
}

#[test]
fn standby_of_nobody() {
    let stays = (ORPHAN, None);
    check(
        ORPHAN,
        [
            (standby_of(LOWER), Some(Reason::PeerOwns)),
            (standby_of(KNOWN), Some(Reason::PeerOwns)),
            (standby_of(HIGHER), Some(Reason::PeerOwns)),
            stays,
            stays,
            stays,
            stays, // the connections of the detached owner may still run
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            (State::Quitting, Some(Reason::Quit)),
        ],
    );
}

#[test]
fn shadow() {
    let stays = (SHADOW, None);
    let admitted = State::Shadow {
        owner: OWNED_BY_A,
        generation: Generation(5),
    };
    check(
        SHADOW,
        [
            stays,
            stays,
            (standby_of(HIGHER), Some(Reason::PeerOwns)),
            (State::Owner, Some(Reason::OwnerForgot)),
            // It stepped down for somebody who will be heard.
            (RESTARTED, Some(Reason::OwnerForgot)),
            (State::Owner, Some(Reason::OwnerForgot)),
            (State::Owner, Some(Reason::OwnerFailed)),
            stays,
            stays,
            (ORPHAN, Some(Reason::OwnerDetached)),
            (State::Owner, Some(Reason::OwnerShutdown)),
            (admitted, Some(Reason::Admitted)),
            (STANDBY, Some(Reason::Dismissed)),
            stays,
            (State::Owner, Some(Reason::OwnerServerLost)),
            stays,
            (STANDBY, Some(Reason::ServerLost)),
            stays,
            (State::Quitting, Some(Reason::Quit)),
        ],
    );
}

#[test]
fn owner() {
    let stays = (State::Owner, None);
    check(
        State::Owner,
        [
            stays, // the other one has to step down
            stays, // a tie that we win
            (standby_of(HIGHER), Some(Reason::Superseded)),
            stays,
            (State::Owner, Some(Reason::Raised)),
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            stays,
            (State::Quitting, Some(Reason::Quit)),
        ],
    );
}

#[test]
fn quitting() {
    check(State::Quitting, [(State::Quitting, None); INPUTS.len()]);
}

#[test]
fn a_claim_is_above_every_epoch_heard_of() {
    for state in [STANDBY, SHADOW] {
        let mut machine = machine_in(state);
        machine.handle_claim(says(C, Role::None, HIGHER), ms(0));
        machine.handle_failed(A);
        assert_eq!(machine.state(), State::Owner);
        assert!(machine.epoch() > HIGHER);
    }
}

#[test]
fn a_raised_claim_is_above_the_stranger() {
    let mut machine = machine_in(State::Owner);
    machine.handle_claim(says(A, Role::None, HIGHER), ms(0));
    assert!(machine.epoch() > HIGHER);
}

#[test]
fn a_lost_tie_is_a_lost_share() {
    let mut machine = machine_in(State::Owner);
    let claim = PeerClaim {
        wins_ties: true,
        ..says(A, Role::Owner, KNOWN)
    };
    machine.handle_claim(claim, ms(0));
    assert_eq!(machine.state(), STANDBY);
}

#[test]
fn a_primary_claims_after_its_grace() {
    let mut machine = ShareMachine::new(config(true, &[A]), ms(0));
    assert_eq!(machine.poll_timeout(), Some(ms(300)));
    machine.handle_timeout(ms(299));
    assert_eq!(machine.poll_change(), None);
    machine.handle_timeout(ms(300));
    machine.handle_timeout(ms(300));
    assert_eq!(machine.state(), State::Owner);
    assert_eq!(machine.epoch(), Epoch::new(40, 1));
    assert!(machine.poll_change().is_some() && machine.poll_change().is_none());
}

#[test]
fn a_primary_claims_at_once_when_all_others_do_nothing() {
    let mut machine = ShareMachine::new(config(true, &[A, C]), ms(0));
    machine.handle_claim(says(A, Role::None, Epoch::NONE), ms(1));
    assert!(matches!(machine.state(), State::Starting { .. }));
    machine.handle_claim(says(C, Role::None, Epoch::NONE), ms(2));
    assert_eq!(machine.state(), State::Owner);
}

/// Another share of its address is somewhere.
#[test]
fn a_share_begins_where_its_address_is() {
    let idle = says(A, Role::None, Epoch::NONE);
    for primary in [true, false] {
        let mut machine = ShareMachine::new(config(primary, &[A]), ms(0));
        machine.handle_home(Home::Elsewhere, ms(1));
        machine.handle_claim(idle, ms(2));
        machine.handle_timeout(ms(300));
        assert!(
            matches!(machine.state(), State::Starting { .. }),
            "it waits"
        );
        machine.handle_home(Home::Elsewhere, ms(5000));
        machine.handle_timeout(ms(7999));
        assert!(
            matches!(machine.state(), State::Starting { .. }),
            "as long as it is so"
        );
        machine.handle_home(Home::Here, ms(8000));
        assert_eq!(machine.state(), State::Owner, "the others do nothing");
        machine.handle_home(Home::Elsewhere, ms(8001));
        assert_eq!(machine.state(), State::Owner, "it has begun");
    }
}

#[test]
fn a_backup_at_whom_the_address_is_begins_as_a_primary() {
    let mut machine = ShareMachine::new(config(false, &[A]), ms(0));
    machine.handle_home(Home::Here, ms(10));
    machine.handle_home(Home::Here, ms(200));
    assert_eq!(machine.poll_timeout(), Some(ms(310)));
    machine.handle_timeout(ms(310));
    assert_eq!(machine.state(), State::Owner);
}

#[test]
fn a_primary_waits_for_a_peer_that_has_twins() {
    let mut machine = ShareMachine::new(config(true, &[A]), ms(0));
    machine.handle_claim(says(A, Role::Shadow, KNOWN), ms(1));
    assert!(matches!(machine.state(), State::Starting { .. }));
    machine.handle_claim(says(A, Role::Owner, HIGHER), ms(2));
    assert_eq!(machine.state(), standby_of(HIGHER));
}

#[test]
fn a_primary_without_backups_claims_at_once() {
    let machine = ShareMachine::new(config(true, &[]), ms(7));
    assert_eq!(machine.poll_timeout(), Some(ms(7)));
}

#[test]
fn a_peer_that_fails_no_longer_counts_as_idle() {
    let mut machine = ShareMachine::new(config(true, &[A, C]), ms(0));
    machine.handle_claim(says(A, Role::None, Epoch::NONE), ms(1));
    machine.handle_failed(A);
    machine.handle_claim(says(C, Role::None, Epoch::NONE), ms(2));
    assert!(matches!(machine.state(), State::Starting { .. }));
}

/// A backup with leases, in `state`; its own epoch is `KNOWN` if it owns.
fn leased(state: State) -> ShareMachine {
    let config = Config {
        claiming: Claiming::Leased,
        ..config(false, &[A])
    };
    match state {
        State::Starting { .. } => ShareMachine::new(config, ms(0)),
        State::Standby { .. } | State::Shadow { .. } | State::Owner | State::Quitting => {
            ShareMachine::resume(config, state, KNOWN)
        }
    }
}

const GRANTED: Epoch = Epoch::new(70, 1);

#[test]
fn with_leases_whoever_would_claim_wishes_to() {
    for state in [
        STARTING,
        STANDBY,
        ORPHAN,
        SHADOW,
        State::Owner,
        State::Quitting,
    ] {
        for (name, input) in INPUTS {
            let (mut bare, mut leased) = (machine_in(state), leased(state));
            input(&mut bare);
            input(&mut leased);
            let changes = |machine: &mut ShareMachine| {
                std::iter::from_fn(|| machine.poll_change()).collect::<Vec<_>>()
            };
            let (claims, waits) = (changes(&mut bare), changes(&mut leased));
            let said = format!("{} and {name}", state.as_str());
            match claims[..] {
                // Its voters granted that; see below.
                [] if state.owner().is_some() && name == "owner, lower epoch" => {
                    assert_eq!(leased.state(), standby_of(LOWER), "{said}");
                }
                // A lease is never raised.
                [change] if change.reason == Reason::Raised => {
                    assert_eq!((leased.wish(), leased.epoch()), (None, KNOWN), "{said}");
                }
                [change] if change.state == State::Owner => {
                    assert_eq!(
                        (leased.state(), leased.wish()),
                        (state, Some(change.reason))
                    );
                    assert_eq!(waits, [], "{said}");
                    leased.handle_granted(GRANTED);
                    assert_eq!(changes(&mut leased), claims, "{said}");
                    assert_eq!((leased.epoch(), leased.wish()), (GRANTED, None), "{said}");
                }
                _ => assert_eq!((waits, leased.wish()), (claims, None), "{said}"),
            }
        }
    }
}

#[test]
fn twins_that_may_lack_bytes_are_ended_before_the_share_is_owned() {
    let mut machine = leased(SHADOW);
    machine.handle_failed(A);
    machine.handle_not_in_sync();
    assert_eq!(machine.wish(), Some(Reason::OwnerFailed));
    machine.handle_granted(GRANTED);
    let reasons: Vec<_> = std::iter::from_fn(|| machine.poll_change())
        .map(|change| (change.state, change.reason))
        .collect();
    let expected = [
        (STANDBY, Reason::Dismissed),
        (State::Owner, Reason::OwnerFailed),
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn an_owner_that_is_seen_again_is_not_wished_away() {
    for (reason, kept) in [
        (Reason::OwnerFailed, false),
        (Reason::LeaseLapsed, false),
        (Reason::OwnerReleased, false),
        (Reason::OwnerShutdown, true),
    ] {
        let mut machine = leased(SHADOW);
        machine.handle_lapse(C, reason);
        assert_eq!(machine.wish(), None, "no owner of ours");
        machine.handle_lapse(A, reason);
        machine.handle_owner_seen(C);
        assert_eq!(machine.wish(), Some(reason));
        machine.handle_owner_seen(A);
        assert_eq!(machine.wish().is_some(), kept, "{}", reason.as_str());
    }
}

/// Of a move that was under way when this node's agent was restarted: the new
/// owner says that it does not own, and a moment later that it does.
#[test]
fn an_owner_that_was_about_to_begin_has_not_forgotten() {
    let mut machine = leased(SHADOW);
    machine.handle_claim(says(A, Role::Shadow, KNOWN), ms(1000));
    assert_eq!(machine.wish(), Some(Reason::OwnerForgot));
    machine.handle_claim(says(C, Role::Owner, LOWER), ms(1000));
    assert!(machine.wish().is_some(), "somebody else, of before");
    machine.handle_claim(says(A, Role::Owner, KNOWN), ms(1001));
    assert_eq!((machine.wish(), machine.state()), (None, SHADOW));
}

/// It slept while its owner's machine and a voter were started anew: whoever waits for
/// the epoch of before waits for ever, and is answered with a lesser one.
#[test]
fn an_owner_that_was_started_anew_may_own_under_a_lesser_epoch() {
    for state in [STANDBY, SHADOW] {
        let mut machine = leased(state);
        machine.handle_lapse(A, Reason::LeaseLapsed);
        machine.handle_claim(says(A, Role::Owner, LOWER), ms(1000));
        assert_eq!(machine.state(), standby_of(LOWER), "{}", state.as_str());
        assert_eq!((machine.epoch(), machine.wish()), (KNOWN, None));
        let mut other = leased(state);
        other.handle_claim(says(C, Role::Owner, LOWER), ms(1000));
        assert_eq!(other.state(), state, "somebody else, of before");
    }
}

/// A standby that had missed its owner for a moment wanted the share for that, heard
/// the owner again, and wanted it no more: the other had let it go meanwhile, and
/// nobody owned it ever after.
#[test]
fn who_is_handed_the_share_wants_it_even_if_its_owner_is_heard_again() {
    let mut machine = leased(SHADOW);
    machine.handle_lapse(A, Reason::OwnerFailed);
    assert_eq!(machine.wish(), Some(Reason::OwnerFailed));
    machine.handle_handed_over();
    machine.handle_owner_seen(A);
    assert_eq!(machine.wish(), Some(Reason::Moved));
}

#[test]
fn a_wish_ends_with_the_state_that_it_arose_in() {
    let mut machine = leased(SHADOW);
    machine.handle_failed(A);
    machine.handle_claim(says(C, Role::Owner, HIGHER), ms(1000));
    assert_eq!(machine.wish(), None);
    let mut starting = leased(STARTING);
    starting.handle_timeout(ms(3000));
    assert_eq!(starting.wish(), Some(Reason::ColdStart));
    assert_eq!(starting.poll_timeout(), None, "it waits for a grant");
}

#[test]
fn a_lost_lease_is_followed_to_its_owner_if_that_is_known() {
    let other = Ownership {
        peer: C,
        epoch: HIGHER,
    };
    for (to, after) in [
        (Some(other), State::Standby { owner: Some(other) }),
        (None, RESTARTED),
    ] {
        let mut machine = leased(State::Owner);
        machine.handle_lost(to, ms(1000));
        assert_eq!(machine.state(), after);
        let change = machine.poll_change().map(|change| change.reason);
        assert_eq!(change, Some(Reason::LeaseLost));
    }
    for state in [STARTING, STANDBY, SHADOW, State::Quitting] {
        let mut machine = leased(state);
        machine.handle_lost(Some(other), ms(1000));
        assert_eq!(machine.state(), state);
    }
}
