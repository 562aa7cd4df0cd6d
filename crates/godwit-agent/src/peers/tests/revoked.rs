//! Certificates that were revoked, and who is told of them.

use std::path::PathBuf;

use super::*;

/// How often connections became no links, of strangers and because a certificate is revoked.
async fn counted(side: &Side, expected: [u64; 2]) {
    let unlinked = side.sender.unlinked();
    let counts = || {
        [Unlinked::Stranger, Unlinked::Revoked].map(|reason| {
            let found = unlinked.read().find(|(other, _)| *other == reason);
            found.map_or(0, |(_, count)| count)
        })
    };
    let said = || format!("{:?}, {expected:?}", counts());
    until(|| counts() == expected, said).await;
}

/// Dials with a certificate, and is turned away.
async fn turned_away(identity: &Identity, to: SocketAddr, name: &str) {
    let stream = TcpStream::connect(to).await.expect("listening");
    let server = tls::server_name(node(name)).expect("a name");
    let connected = identity.connector().connect(server, stream).await;
    let mut byte = [0];
    let mut stream = connected.expect("TLS says nothing of it");
    assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
}

/// It is dialled itself, so nobody with its certificate should dial; or no file names it any
/// more. Whatever else is wrong, the certificate is revoked.
#[tokio::test]
async fn a_revoked_certificate_is_named_also_where_nobody_should_dial_with_it() {
    let mut pair = Pair::new();
    let authority = pair.dir().join("ca");
    let folder = pair.dir().join("c");
    pki::issue(&authority, node("c"), &folder, None).expect("issued");
    let mut third = pair.b.clone();
    third.tls.cert = folder.join(pki::NODE_CERT);
    third.tls.key = folder.join(pki::NODE_KEY);
    let list = authority.join(pki::CRL);
    pair.a.tls.crl = Some(list.clone());
    let a = start_side(&pair.a).await;
    let to = pair.a.own_peer().control;
    for (tried, name, tls) in [(0, "c", third.tls), (1, "b", pair.b.tls.clone())] {
        let identity = Identity::load(&tls, node(name)).expect("certificates");
        turned_away(&identity, to, "a").await;
        counted(&a, [tried + 1, tried]).await;
        pki::revoke(&authority, node(name));
        let own = &a.sender.shared.identity;
        own.renew_lists(&list).expect("it is newer");
        turned_away(&identity, to, "a").await;
        counted(&a, [tried + 1, tried + 1]).await;
    }
    let refused = a.sender.shared.identity.refused_peers();
    assert_eq!(refused.into_keys().collect::<Vec<_>>(), [node("b")]);
    assert_eq!(
        absence(&a, NoLink::Unreachable).await,
        0,
        "b itself is not there"
    );
}

/// One side that has a list of what is revoked, and another one; both are linked.
struct Court {
    pair: Pair,
    ours: Side,
    theirs: Side,
    /// Whose certificate is revoked.
    judged: NodeName,
}

impl Court {
    async fn new(judged: &str) -> Self {
        let mut pair = Pair::new();
        let list = Some(pair.dir().join("ca").join(pki::CRL));
        let (ours, theirs) = if judged == "b" {
            pair.a.tls.crl = list;
            linked(&pair.a, &pair.b).await
        } else {
            pair.b.tls.crl = list;
            linked(&pair.b, &pair.a).await
        };
        ours.hear_hello().await;
        theirs.hear_hello().await;
        let judged = node(judged);
        Self {
            pair,
            ours,
            theirs,
            judged,
        }
    }

    fn authority(&self) -> PathBuf {
        self.pair.dir().join("ca")
    }

    /// Has our side know that the other one's certificate is revoked; since when.
    fn revoke(&self) -> Instant {
        let authority = self.authority();
        pki::revoke(&authority, self.judged);
        let begun = Instant::now();
        let identity = &self.ours.sender.shared.identity;
        let list = authority.join(pki::CRL);
        identity.renew_lists(&list).expect("it is newer");
        begun
    }

    /// Gives the other side another certificate.
    fn renew(&self) {
        let config = if self.judged == node("b") {
            &self.pair.b
        } else {
            &self.pair.a
        };
        let folder = config.tls.cert.parent().expect("a folder");
        pki::issue(&self.authority(), self.judged, folder, None).expect("issued");
        let identity = &self.theirs.sender.shared.identity;
        identity
            .renew(&config.tls, self.judged)
            .expect("it is good");
    }
}

/// TLS does not tell who is refused for a list that his node does not have yet, whichever of the
/// two dials. That the peer closes each link before its first word says it, within a second.
#[tokio::test]
async fn who_is_revoked_notices_it_without_a_list_of_its_own() {
    for judged in ["a", "b"] {
        let court = Court::new(judged).await;
        let (ours, theirs) = (&court.ours, &court.theirs);
        let begun = court.revoke();
        assert_eq!(absence(theirs, NoLink::TurnedAway).await, 1, "told once");
        assert!(begun.elapsed() < Duration::from_secs(1), "{judged}");
        assert_eq!(absence(ours, NoLink::PeerRevoked).await, 1, "told once");
    }
}

/// Both ways: `a` dials `b`.
#[tokio::test]
async fn a_peer_that_is_revoked_is_cut_off_until_it_has_another_certificate() {
    for judged in ["a", "b"] {
        let court = Court::new(judged).await;
        let (ours, theirs) = (&court.ours, &court.theirs);
        let identity = &ours.sender.shared.identity;
        let beat = |sequence| signed(theirs, judged, sequence);
        assert!(ours.keys.verify(&beat(1)).is_ok(), "it is alive");

        let begun = court.revoke();
        assert_eq!(ours.next_link().await, Some(Link::Down), "{judged}");
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(ours.keys.verify(&beat(2)).err(), Some(Refused::NoKey));
        // It comes again and again.
        let count = || {
            let unlinked = ours.sender.unlinked();
            let mut counts = unlinked.read();
            counts.find(|(reason, _)| *reason == Unlinked::Revoked)
        };
        let is_often = || count().is_some_and(|(_, count)| count >= 3);
        until(is_often, || format!("{:?}", count())).await;
        assert!(!ours.sender.is_linked(OTHER), "it has no link");
        let refused = identity.refused_peers();
        assert_eq!(refused.into_keys().collect::<Vec<_>>(), [node(judged)]);
        assert!(
            ours.next_input().is_none(),
            "the driver hears nothing of it"
        );

        court.renew();
        ours.greet().await;
        theirs.greet_until_heard(ours).await;
        assert!(
            ours.keys.verify(&beat(3)).is_ok(),
            "{judged} is believed again"
        );
        assert!(identity.refused_peers().is_empty());
        assert!(
            ours.keys.verify(&beat(1)).is_err(),
            "what it has said before is not forgotten"
        );
    }
}

/// Who has a certificate that was revoked does not end the link of its owner, who has another.
#[tokio::test]
async fn a_revoked_certificate_does_no_harm_to_its_owner() {
    let mut pair = Pair::new();
    let authority = pair.dir().join("ca");
    let stolen = Identity::load(&pair.a.tls, node("a")).expect("certificates");
    pki::revoke(&authority, node("a"));
    let folder = pair.a.tls.cert.parent().expect("a folder");
    pki::issue(&authority, node("a"), folder, None).expect("issued");
    pair.b.tls.crl = Some(authority.join(pki::CRL));
    let (a, b) = linked(&pair.a, &pair.b).await;
    b.hear_hello().await;
    a.hear_hello().await;
    for _ in 0..3 {
        turned_away(&stolen, pair.b.own_peer().control, "b").await;
    }
    assert!(b.keys.verify(&signed(&a, "a", 1)).is_ok(), "it is alive");
    assert!(b.sender.is_linked(OTHER) && b.next_input().is_none());
    let refused = b.sender.shared.identity.refused_peers();
    assert_eq!(refused.len(), 1, "it is said");
}
