//! Files that look right and can't be.

use super::*;

/// What is said of the example with this instead of that, without the file.
fn refused(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let error = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
    let sentence = error.to_string();
    assert!(!sentence.contains('\n'), "{sentence}");
    let sentence = sentence.strip_prefix("/etc/godwit/godwit.toml:");
    sentence.expect("the file").to_owned()
}

/// Two of three would be a majority, and both the same node.
#[test]
fn a_voter_is_named_once() {
    for twice in ["\"b\"", "\"B\""] {
        let voters = format!("[\"a\", \"b\", {twice}]");
        let wanted = format!("6: [cluster]: voters {twice} is already used at line 6");
        assert_eq!(refused("[\"a\", \"b\", \"w\"]", &voters), wanted);
    }
}

#[test]
fn a_service_has_an_address() {
    let both = "[\"10.9.0.100:80\", \"[2001:db8::100]:80\"]";
    let wanted = "33: service \"web\": address must name at least one address with its port";
    assert_eq!(refused(both, "[]"), wanted);
}

#[test]
fn addresses_that_no_client_can_come_to_are_refused() {
    let rows = [
        ("0.0.0.0:80", "unspecified"),
        ("[::]:80", "unspecified"),
        ("127.8.0.1:80", "loopback"),
        ("[::1]:80", "loopback"),
        ("224.0.0.1:80", "multicast"),
        ("[ff02::1]:80", "multicast"),
        ("255.255.255.255:80", "broadcast"),
        ("240.0.0.1:80", "reserved (class E)"),
        ("0.1.2.3:80", "of \"this network\" (0.0.0.0/8)"),
        ("[fe80::1]:80", "link-local"),
    ];
    for (address, kind) in rows {
        let sentence = refused("\"[2001:db8::100]:80\"", &format!("\"{address}\""));
        let wanted = format!(
            "33: service \"web\": address must be one that clients can reach, and {address} is \
             {kind}"
        );
        assert_eq!(sentence, wanted);
    }
    let mapped = refused("[2001:db8::100]:80", "[::ffff:127.0.0.1]:80");
    assert!(mapped.ends_with("127.0.0.1:80 is loopback"), "{mapped}");
}

/// Clients on the link find it; routers lead nobody there.
#[test]
fn an_address_of_the_link_has_no_routers_before_it() {
    let local = GOOD.replacen("10.9.0.100:80", "169.254.7.1:80", 1);
    parse(&local).expect("clients may be on the link");
    let routed = local.replacen("standby = \"shadow\"", "standby = \"none\"", 1);
    let routed = routed.replacen("tap = \"mirror\"", "front = \"router\"", 1);
    let error = parse(&routed).expect_err("behind routers").to_string();
    assert!(error.ends_with("169.254.7.1:80 is link-local"), "{error}");
    parse(&routed.replacen("169.254.7.1", "10.9.0.100", 1)).expect("another address");
}

/// An address with its port is one service's.
#[test]
fn services_do_not_share_an_address_with_its_port_nor_a_name() {
    let second = |name: &str, port: u16| {
        format!(
            "{GOOD}\n[[service]]\nname = \"{name}\"\naddress = \"10.9.0.100:{port}\"\n\
             primary = \"a\"\nbackups = [\"b\"]\n"
        )
    };
    parse(&second("mail", 25)).expect("another port");
    let error = parse(&second("mail", 80))
        .expect_err("the same")
        .to_string();
    let wanted = "service \"mail\": address 10.9.0.100:80 is already used at line 33";
    assert!(error.ends_with(wanted), "{error}");
    let error = parse(&second("Web", 25)).expect_err("a name").to_string();
    let wanted = "service \"Web\": name \"Web\" is already used at line 32";
    assert!(error.ends_with(wanted), "{error}");
}
