//! Two nodes on loopback, for this crate's tests.

use std::env;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_wire::{Hello, MAX_VERSION, MIN_VERSION, Message, NodeName, PeerMessage};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::config::Config;
use crate::input::{Input, Inputs};
use crate::status::{Ownership, ServiceReport};

/// Long enough for a loaded machine, short enough to notice a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Descriptors that a test has which runs out of them.
const FEW: u64 = 256;

/// Certificates, also such as have ended.
pub(crate) mod pki {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use godwit_pki::{Issued, Life, Order, PkiError, Renewal, Renewals, Which};
    use godwit_wire::NodeName;

    pub(crate) use godwit_pki::{CA_CERT, CRL, NODE_CERT, NODE_KEY};

    const DAY: u64 = 86_400;

    /// In a folder that is closed, whatever the mask of who runs this is.
    pub(crate) fn init(folder: &Path) -> Result<(), PkiError> {
        fs::create_dir_all(folder).expect("made");
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
        godwit_pki::init(folder)
    }

    /// For so many days from now, or before now; `None`: as long as usual.
    pub(crate) fn issue(
        authority: &Path,
        name: NodeName,
        out: &Path,
        days: Option<i64>,
    ) -> Result<Issued, PkiError> {
        let life = days.map_or(Life::Usual, |days| {
            let away = Duration::from_secs(days.unsigned_abs() * DAY);
            let now = SystemTime::now();
            Life::Until(if days < 0 { now - away } else { now + away })
        });
        let order = Order {
            name,
            out,
            life,
            unless_valid_for: None,
        };
        godwit_pki::issue(authority, &order)
    }

    /// As a node does it, for so many days.
    pub(crate) fn renew(authority: &Path, folder: &Path, days: u16) {
        let any = "127.0.0.1:0".parse().expect("an address");
        let renewals = Renewals::bind(authority, any, days).expect("it listens");
        let renewals = Arc::new(renewals);
        let from = renewals.address().expect("it has one").to_string();
        std::thread::spawn(move || renewals.run());
        let wanted = Renewal {
            from: &from,
            folder,
            unless_valid_for: None,
        };
        godwit_pki::renew(&wanted).expect("renewed");
    }

    /// All certificates that a node has had.
    pub(crate) fn revoke(authority: &Path, name: NodeName) {
        let revoked = godwit_pki::revoke(authority, &Which::Name(name));
        revoked.expect("it had one");
    }
}

/// Certificates and configurations of nodes `a` and `b`.
pub(crate) struct Pair {
    dir: TempDir,
    pub(crate) a: Config,
    pub(crate) b: Config,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        pki::init(&dir.path().join("ca")).expect("authority");
        for name in ["a", "b"] {
            pki::issue(
                &dir.path().join("ca"),
                node(name),
                &dir.path().join(name),
                None,
            )
            .expect("node");
        }
        let ports = (free_port("127.0.0.1"), free_port("127.0.0.2"));
        Self {
            a: configure(dir.path(), "a", ports),
            b: configure(dir.path(), "b", ports),
            dir,
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a valid name")
}

pub(crate) fn hello(name: &str, incarnation: u64) -> Message {
    Message::Peer(PeerMessage::Hello(Hello {
        name: node(name),
        incarnation,
        min_version: MIN_VERSION,
        max_version: MAX_VERSION,
        heartbeat_key: [0; 32],
        config_digest: [7; 32],
    }))
}

/// The next input that `wanted` accepts; others are skipped.
pub(crate) fn wait_for<T>(
    inputs: &Inputs,
    mut wanted: impl FnMut(Input) -> Option<T>,
) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        if let Some(found) = wanted(inputs.recv_timeout(left).ok()?) {
            return Some(found);
        }
    }
}

/// Whether this is the process of its own in which the test of that name goes on; else it has
/// done so there.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "GODWIT_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(env::current_exe().expect("it runs"));
    let command = command
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1");
    let output = command.output().expect("it runs again");
    let said = String::from_utf8_lossy(&output.stdout);
    let is_well = output.status.success() && said.contains("1 passed");
    assert!(is_well, "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// All descriptors that are left, and not many; only where a test [`is_alone`].
pub(crate) fn take_all() -> Vec<File> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("it can be asked");
    setrlimit(Resource::RLIMIT_NOFILE, FEW.min(most), most).expect("it can be lowered");
    let mut all = vec![File::open("/dev/null").expect("there is room")];
    while let Ok(another) = all[0].try_clone() {
        all.push(another);
    }
    all
}

/// Of a service in this state, of a and b.
pub(crate) fn service_report(state: &str, in_sync: &[&str]) -> ServiceReport {
    ServiceReport {
        name: "web".into(),
        share: 0,
        addresses: Vec::new(),
        primary: "a".into(),
        backups: vec!["b".into()],
        ownership: Ownership {
            state: state.into(),
            role: state.into(),
            owner: (state != "standby").then(|| "b".into()),
            epoch: "1.1".into(),
            generation: 1,
            in_sync: in_sync.iter().map(|name| (*name).to_owned()).collect(),
        },
        not_listening: Vec::new(),
        gate: "ack".into(),
        watched: false,
        leash_bytes: 0,
        asks: None,
        load: None,
        protected: 0,
        flows: Default::default(),
        is_ring: false,
        has_standby: true,
        takeovers: 0,
        last_takeover: None,
        resets: Default::default(),
    }
}

/// The file of `node`, of servers a and b and directors d1 and d2; `more` of its service.
pub(crate) fn directed(node: &str, more: &str) -> Config {
    let peer = |(last, (name, role)): (u8, (&str, &str))| {
        format!("[[peer]]\nname = \"{name}\"\nrole = \"{role}\"\ncontrol = \"10.9.0.{last}:7\"\n")
    };
    let peers = [
        ("a", "server"),
        ("b", "server"),
        ("d1", "director"),
        ("d2", "director"),
    ];
    let peers: String = (1..).zip(peers).map(peer).collect();
    let text = format!(
        "[node]\nname = \"{node}\"\ninterface = \"eth0\"\n\
         [tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n\
         [detect]\nfencing = \"none\"\n\
         [director]\nseed = \"0000000000000001\"\ntable_size = 251\n{peers}\
         [[service]]\nname = \"web\"\naddress = \"10.9.0.100:80\"\nstandby = \"none\"\n\
         front = \"director\"\nprimary = \"a\"\nbackups = [\"b\"]\n{more}"
    );
    Config::parse("godwit.toml".as_ref(), &text).expect("valid")
}

fn free_port(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).expect("loopback");
    listener.local_addr().expect("bound").port()
}

fn configure(dir: &Path, name: &str, ports: (u16, u16)) -> Config {
    let text = format!(
        r#"
[node]
name = "{name}"
interface = "lo"
run_dir = "{dir}/run"
[[peer]]
name = "a"
role = "server"
control = "127.0.0.1:{a}"
[[peer]]
name = "b"
role = "server"
control = "127.0.0.2:{b}"
[tls]
ca = "ca.pem"
cert = "node.pem"
key = "node.key"
[detect]
fencing = "none"
[[service]]
name = "web"
address = "10.9.0.100:80"
primary = "a"
backups = ["b"]
"#,
        dir = dir.display(),
        a = ports.0,
        b = ports.1,
    );
    let path = dir.join(name).join("godwit.toml");
    fs::write(&path, &text).expect("written");
    // Whatever the mask of who runs this is.
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
    Config::load(&path).expect("valid")
}
