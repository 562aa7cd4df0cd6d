//! Certificates that were revoked, and who is told of them.

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
    let deadline = Instant::now() + PATIENCE;
    while counts() != expected {
        assert!(Instant::now() < deadline, "{:?}, {expected:?}", counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
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

/// TLS does not tell who is refused for a list that his node does not have yet, whichever of the
/// two dials. That the peer closes each link before its first word says it, within a second.
#[tokio::test]
async fn who_is_revoked_notices_it_without_a_list_of_its_own() {
    for (judge, judged) in [("a", "b"), ("b", "a")] {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let list = authority.join(pki::CRL);
        let [config, other] = match judge {
            "a" => [&mut pair.a, &mut pair.b],
            _ => [&mut pair.b, &mut pair.a],
        };
        config.tls.crl = Some(list.clone());
        let (config, other) = (config.clone(), other.clone());
        let (ours, theirs) = (start_side(&config).await, start_side(&other).await);
        ours.greet().await;
        theirs.greet().await;
        assert!(matches!(
            ours.next_message().await,
            Some(Message::Peer(PeerMessage::Hello(_)))
        ));
        let hello = theirs.next_message().await;
        assert!(matches!(hello, Some(Message::Peer(PeerMessage::Hello(_)))));
        pki::revoke(&authority, node(judged));
        let begun = Instant::now();
        let identity = &ours.sender.shared.identity;
        identity.renew_lists(&list).expect("it is newer");
        assert_eq!(absence(&theirs, NoLink::TurnedAway).await, 1, "told once");
        assert!(begun.elapsed() < Duration::from_secs(1), "{judged}");
        assert_eq!(absence(&ours, NoLink::PeerRevoked).await, 1, "told once");
    }
}

/// Both ways: `a` dials `b`.
#[tokio::test]
async fn a_peer_that_is_revoked_is_cut_off_until_it_has_another_certificate() {
    for (judge, judged) in [("a", "b"), ("b", "a")] {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let list = authority.join(pki::CRL);
        let [config, other] = match judge {
            "a" => [&mut pair.a, &mut pair.b],
            _ => [&mut pair.b, &mut pair.a],
        };
        config.tls.crl = Some(list.clone());
        let (config, other) = (config.clone(), other.clone());
        let (ours, theirs) = (start_side(&config).await, start_side(&other).await);
        ours.greet().await;
        theirs.greet().await;
        assert!(matches!(
            ours.next_message().await,
            Some(Message::Peer(PeerMessage::Hello(_)))
        ));
        assert!(matches!(
            theirs.next_message().await,
            Some(Message::Peer(PeerMessage::Hello(_)))
        ));
        let beat = |sequence| signed(&theirs, judged, sequence);
        assert!(ours.keys.verify(&beat(1)).is_ok(), "it is alive");

        pki::revoke(&authority, node(judged));
        let begun = Instant::now();
        let identity = &ours.sender.shared.identity;
        identity.renew_lists(&list).expect("it is newer");
        assert_eq!(ours.next_link().await, Some(Link::Down), "{judged}");
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(ours.keys.verify(&beat(2)).err(), Some(Refused::NoKey));
        // It comes again and again.
        let count = || {
            let unlinked = ours.sender.unlinked();
            let mut counts = unlinked.read();
            counts.find(|(reason, _)| *reason == Unlinked::Revoked)
        };
        let end = Instant::now() + PATIENCE;
        while count().is_none_or(|(_, count)| count < 3) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            count().is_some_and(|(_, count)| count >= 3),
            "{:?}",
            count()
        );
        assert!(!ours.sender.is_linked(OTHER), "it has no link");
        let refused = identity.refused_peers();
        assert_eq!(refused.into_keys().collect::<Vec<_>>(), [node(judged)]);
        assert!(
            ours.next_input().is_none(),
            "the driver hears nothing of it"
        );

        let folder = other.tls.cert.parent().expect("a folder");
        pki::issue(&authority, node(judged), folder, None).expect("issued");
        let renewed = &theirs.sender.shared.identity;
        renewed.renew(&other.tls, node(judged)).expect("it is good");
        ours.greet().await;
        theirs.greet_until_heard(&ours).await;
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
    let (a, b) = (start_side(&pair.a).await, start_side(&pair.b).await);
    a.greet().await;
    b.greet().await;
    assert!(matches!(
        b.next_message().await,
        Some(Message::Peer(PeerMessage::Hello(_)))
    ));
    assert!(matches!(
        a.next_message().await,
        Some(Message::Peer(PeerMessage::Hello(_)))
    ));
    for _ in 0..3 {
        let to = pair.b.own_peer().control;
        let stream = TcpStream::connect(to).await.expect("listening");
        let server = tls::server_name(node("b")).expect("a name");
        let connected = stolen.connector().connect(server, stream).await;
        let mut byte = [0];
        let mut stream = connected.expect("TLS says nothing of it");
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
    }
    assert!(b.keys.verify(&signed(&a, "a", 1)).is_ok(), "it is alive");
    assert!(b.sender.is_linked(OTHER) && b.next_input().is_none());
    let refused = b.sender.shared.identity.refused_peers();
    assert_eq!(refused.len(), 1, "it is said");
}
